"""The line of the program behind an operation, or where a thread is."""

from __future__ import annotations

import re

from disttrace_viewer.trace.model import Frame, Stack, Trace
from disttrace_viewer.trace.operation import Op, ops

__all__ = ["Op", "frame", "innermost", "ops"]

_LIBRARY = re.compile(
    r"/(site-packages|dist-packages)/(torch|disttrace)/|/python3[^/]*/(multiprocessing|threading)"
)


def innermost(stack: Stack) -> Frame | None:
    """The innermost frame of the user's program; that of a library where there is no other.

    The interpreter's own start (``<frozen runpy>``) is no place in anybody's program.
    """
    shown = [one for one in stack if not one.file.startswith("<frozen ")]
    return next((one for one in shown if not _LIBRARY.search(one.file)), next(iter(shown), None))


def frame(trace: Trace, op: Op) -> Frame | None:
    """The user's line that called; None where Python had no frame."""
    return innermost(trace.stack(op.call.index))
