"""Who waits, and of whom nothing is known that may be missing there."""

from __future__ import annotations

from collections.abc import Sequence

from disttrace_viewer.analysis.operation import frame
from disttrace_viewer.trace.model import Trace
from disttrace_viewer.trace.operation import Op
from disttrace_viewer.wording import sentences


def summary(
    trace: Trace, who: Sequence[int], op: Op, waited_ns: int, missing: Sequence[int]
) -> str:
    """Who waits in what, for how long, and who may be missing."""
    where = frame(op)
    at = "" if where is None else f" at {sentences.is_at(where)}"
    call, group = sentences.operation(trace, op), op.call.group
    return (
        f"{sentences.have_been(trace, who, within=group)} waiting in {call}{at} for"
        f" {sentences.span(waited_ns)}; {sentences.ranks(missing)} may be missing there."
    )
