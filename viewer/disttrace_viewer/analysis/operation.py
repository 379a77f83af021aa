"""The line of the program behind an operation, or where a thread is."""

from __future__ import annotations

from disttrace.journal.code_files import (
    TYPED,
    in_package,
    is_generated,
    is_library,
    is_program,
)
from disttrace_viewer.trace.model import Frame, Stack, Trace
from disttrace_viewer.trace.operation import Op, ops

__all__ = ["Op", "frame", "innermost", "is_library", "ops"]

Site = tuple[str, int | Frame | None]
"""Operation and stack of a call, or the user's line: what makes two calls the same one."""


_CARRIERS = ("torch/", "disttrace/", "typing_extensions.py")


def innermost(stack: Stack) -> Frame | None:
    """The innermost frame of the user's program.

    Else that of ``python -c``. A program may itself be an installed package, so where no frame lies
    outside of those, the innermost one counts that is neither torch's nor of the standard library;
    else the innermost. The interpreter's own start (``<frozen runpy>``) is no place in anybody's
    program.
    """
    shown = [one for one in stack if not one.file.startswith("<frozen ")]
    for own in (is_program, TYPED.__eq__, _is_package):
        found = next((one for one in shown if own(one.file)), None)
        if found is not None:
            return found
    return next(iter(shown), None)


def inside(stack: Stack) -> Frame | None:
    """The innermost frame, where that is not the user's own: what it called."""
    first = next((one for one in stack if not one.file.startswith("<frozen ")), None)
    return None if first is None or first == innermost(stack) else first


def _is_package(file: str) -> bool:
    inside_package = in_package(file)
    return inside_package is not None and not inside_package.startswith(_CARRIERS)


def frame(trace: Trace, op: Op) -> Frame | None:
    """The user's line that called; None where Python had no frame."""
    return innermost(trace.stack(op.call.index))


def site(trace: Trace, call: int) -> Site:
    """Where a call was made. Each rank generates code of its own, under names and lines of its own:
    what called from there is compared by the user's line.
    """
    value = trace.call(call)
    if is_of_generated(trace, call):
        return value.op, innermost(trace.stack(call))
    return value.op, value.stack


def is_of_generated(trace: Trace, call: int) -> bool:
    """Whether code that was made while the program ran called, or handed the call on."""
    return any(is_generated(one.file) for one in trace.stack(call) if one.file[:8] != "<frozen ")
