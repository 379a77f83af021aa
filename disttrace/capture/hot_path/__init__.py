"""The wrapper of a method that is called all the time, and the key under which it knows a call."""
