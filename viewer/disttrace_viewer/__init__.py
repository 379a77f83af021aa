"""The reader: turns journals into one picture of what every process did; never imports torch."""
