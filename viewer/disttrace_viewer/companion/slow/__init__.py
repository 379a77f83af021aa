"""Ranks that make others wait, told while it happens: read, summed up, tested."""
