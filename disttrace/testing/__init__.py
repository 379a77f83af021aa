"""Runs a test, or a rehearsal, in several ranks on this machine, and tells what became of them."""
