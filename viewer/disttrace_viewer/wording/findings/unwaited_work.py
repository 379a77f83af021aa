"""Asynchronous work whose result nobody ever asked for."""

from __future__ import annotations

from collections.abc import Sequence

from disttrace_viewer.trace.model import Trace
from disttrace_viewer.trace.operation import Op
from disttrace_viewer.wording import sentences

HINT = "Keep the Work and wait for it before the tensors are used or freed."


def summary(trace: Trace, who: Sequence[int], op: Op, times: int) -> str:
    """``op``: one of so many at one line."""
    again = f", {times:,} times" if times > 1 else ""
    return (
        f"{sentences.subject(trace, who)} never waited for {op.call.op} at"
        f" {sentences.line(op)}{again}, and dropped the Work."
    )
