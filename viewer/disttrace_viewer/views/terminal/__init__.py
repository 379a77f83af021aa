"""The terminal report: what to show is computed as values, and painted from nothing else."""

PLAIN, DIM, BAD, WAIT, GOOD, HEAD, NUMBER = "", "dim", "bold red", "yellow", "green", "bold", "cyan"
"""The palette, in rich's words: few colours, each with one meaning."""
HOLD = "\ue000"
"""Stands between a number and its unit while a text is wrapped, so that they stay together."""
