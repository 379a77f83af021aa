"""The two ends of a message disagree: what each of them passes."""

from __future__ import annotations

from disttrace_viewer.trace.model import Trace
from disttrace_viewer.trace.operation import Op
from disttrace_viewer.wording import sentences

HINT = "Give both ends tensors of one size and dtype; the rest of the receiver's is stale."


def summary(trace: Trace, send: Op, receive: Op, times: int) -> str:
    """``times``: how many messages of these two calls there are."""
    ends = [
        f"{trace.processes[op.process].label} {verb} {sentences.sizes(op)} ({sentences.line(op)})"
        for op, verb in ((send, "sends"), (receive, "receives"))
    ]
    again = f" ({times} times)" if times > 1 else ""
    return f"{sentences.capital(' where '.join(ends))}{again}."
