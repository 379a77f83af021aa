"""Which journals of a folder a companion reads: its own, and what nobody told of, of one host."""
