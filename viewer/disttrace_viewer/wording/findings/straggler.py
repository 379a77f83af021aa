"""Someone makes the others wait again and again, in collectives or for messages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from disttrace_viewer.analysis.operation import innermost
from disttrace_viewer.trace.model import Trace
from disttrace_viewer.trace.process import Frame
from disttrace_viewer.wording import sentences

if TYPE_CHECKING:
    from disttrace_viewer.analysis.timing.delays import Delay  # which needs Polars

HINT = (
    "Look at what this rank does between its communication before and this line: data loading,"
    " logging, a slower device, or more work than the others."
)

HINT_AFTER = (
    "Look at what this rank does after this line until a thread of a pool communicates for it: data"
    " loading, logging, a slower device, or more work than the others."
)


def summary(trace: Trace, delay: Delay, kind: str, after: Frame | None = None) -> str:
    """Who is late, by how much, how often and where, and what that cost the others; ``after``: the
    program's line before it, where the call has none.
    """
    where = innermost(trace.stack(delay.call))
    at = f" before {sentences.is_at(where)}" if where is not None else ""
    if after is not None:
        at = f" after {sentences.is_at(after)}"
    does = "sends late"
    if kind == "straggler":
        does = f"comes late to {trace.call(delay.call).op}"
    return (
        f"{sentences.subject(trace, [delay.process])} {does} by {sentences.span(delay.median_ns)}"
        f" in {delay.times} of {delay.of} cases{at}; {sentences.processes(trace, delay.others)}"
        f" waited {sentences.span(delay.waited_ns)} for it in total."
    )
