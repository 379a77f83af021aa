"""What is said of an attempt that failed and was repeated with success, and of a trial that failed
beside others which did not."""

from __future__ import annotations

from disttrace_viewer.trace.model import Trace
from disttrace_viewer.wording import sentences

HINT = "Nothing is lost but the time of that attempt; if it comes again, read why it failed."


def summary(what: str, attempt: int, later: int) -> str:
    """``what``: the sentence of the finding."""
    return f"Attempt {attempt} failed ({what.rstrip('.')}); attempt {later} ran to its end."


HINT_OF_A_TRIAL = (
    "The program went on without it, and what it began later ended well; if no rank of it may fail,"
    " have it end with another code."
)


def of_a_trial(what: str, trace: Trace, starter: int) -> str:
    """``starter``: the process that ran the trials."""
    label = sentences.processes(trace, [starter])
    return (
        f"One run of several that {label} began failed ({what.rstrip('.')}); {label} began others"
        " after it, which ended well, as it did."
    )
