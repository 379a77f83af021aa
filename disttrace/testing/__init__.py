"""Runs a test, or a rehearsal, in several ranks on this machine, and reports how they ended."""
