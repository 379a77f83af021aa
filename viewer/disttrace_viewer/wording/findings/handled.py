"""What exception a process handles while it waits, or while others wait for it."""

from __future__ import annotations

from collections.abc import Mapping

from disttrace_viewer.analysis.operation import innermost
from disttrace_viewer.trace.model import Trace
from disttrace_viewer.trace.process import Failure
from disttrace_viewer.wording import sentences
from disttrace_viewer.wording.ends import raised


def sentence(trace: Trace, found: Mapping[int, Failure]) -> str:
    """``Rank 1 handles ValueError: bad batch (train.py:12) there.``"""
    told = sentences.together((_what(failure), process) for process, failure in found.items())
    return " ".join(
        f"{sentences.subject(trace, who)} handle{'s' * (len(who) == 1)} {what} there."
        for what, who in told.items()
    )


def hint(trace: Trace, found: Mapping[int, Failure]) -> str:
    """What to read first, and what to change."""
    what = sentences.listed(list(dict.fromkeys(map(_what, found.values()))))
    return (
        f"Find why {sentences.processes(trace, found)} raised {what}. What runs in `except`,"
        " `finally` and at the end of a `with` runs on the ranks that raised alone: do not"
        " communicate or wait there where the others are elsewhere."
    )


def _what(failure: Failure) -> str:
    return f"{raised(failure)}{sentences.aside(innermost(failure.stack))}"
