"""What the ranks of scenarios do, by what they are about."""
