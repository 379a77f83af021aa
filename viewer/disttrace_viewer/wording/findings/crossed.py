"""Whether whoever waits addressed the right one: both sides, and what to ask of them."""

from __future__ import annotations

from disttrace_viewer.evidence.waits.wait import COLLECTIVE, MESSAGE, Wait
from disttrace_viewer.trace.model import Trace
from disttrace_viewer.wording import sentences


def question(trace: Trace, wait: Wait, other: Wait) -> str:
    """``wait`` is for somebody else than the one who waits, in ``other``, for its process."""
    one, two = (trace.processes[w.process].label for w in (wait, other))
    here, there = (sentences.call(trace, w.op) for w in (wait, other))
    asked = "group" if wait.kind == COLLECTIVE else "source"
    if wait.kind == MESSAGE and wait.op.call.op == "send":
        asked = "destination"
    return (
        f"{one} is in {here} while {two} is in {there} and waits for {one}: is the {asked} right?"
    )


def asked(summary: str, trace: Trace, wait: Wait, other: Wait | None) -> str:
    """A summary, and the question behind it where there is an ``other``."""
    return summary if other is None else f"{summary[:-1]}; {question(trace, wait, other)}"
