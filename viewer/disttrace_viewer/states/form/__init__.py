"""A state as it is written: its schema, and what is read off it without merging any."""
