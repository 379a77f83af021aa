"""The faults of real programs, run traced, and what must be said about each."""
