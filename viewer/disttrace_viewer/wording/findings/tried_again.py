"""What is said of an attempt that failed and was repeated with success."""

from __future__ import annotations

HINT = "Nothing is lost but the time of that attempt; if it comes again, read why it failed."


def summary(what: str, attempt: int, later: int) -> str:
    """``what``: the sentence of the finding."""
    return f"Attempt {attempt} failed ({what.rstrip('.')}); attempt {later} ran to its end."
