"""The line of the program behind an operation, or where a thread is."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Set

from disttrace.journal.code_files import is_generated, is_program, programs_frame
from disttrace_viewer.trace.model import Call
from disttrace_viewer.trace.operation import Op
from disttrace_viewer.trace.process import Frame, Stack

Site = tuple[str, Stack | Frame | None]
"""Operation and stack of a call, or the user's line: what makes two calls the same one."""


@functools.lru_cache(1024)  # of thousands of ranks most are at one line
def innermost(stack: Stack) -> Frame | None:
    """The innermost frame of the user's program, as far as files tell (``programs_frame``)."""
    at = programs_frame([one.file for one in stack])
    return None if at is None else stack[at]


def inside(stack: Stack) -> Frame | None:
    """The innermost frame, where that is not the user's own: what it called."""
    first = next((one for one in stack if not one.file.startswith("<frozen ")), None)
    return None if first is None or first == innermost(stack) else first


def frame(op: Op) -> Frame | None:
    """The user's line that called, or that waits for the thread that did; None where Python had no
    frame.
    """
    return innermost(op.awaited_at or op.call.stack)


Lines = Mapping[tuple[str, str], Set[int]]
"""By file and function of the program the lines at which operations were called."""


def lines_of(found: Iterable[Op]) -> Lines:
    """All frames of their stacks, each stack once."""
    lines: dict[tuple[str, str], set[int]] = {}
    for stack in {op.call.stack for op in found}:
        for one in stack:
            if is_program(one.file):
                lines.setdefault((one.file, one.function), set()).add(one.line)
    return lines


def branch(op: Op, others: Lines) -> Frame | None:
    """The line of a caller at which an operation parted from others that the same function made by
    another of its lines; None where that is its own line, or no caller is known to be of both.
    """
    for one in op.call.stack:
        lines = others.get((one.file, one.function)) if is_program(one.file) else None
        if lines is not None:
            return None if one.line in lines or one == frame(op) else one
    return None


def site(call: Call) -> Site:
    """Where a call was made. Each rank generates code of its own, under names and lines of its own:
    what called from there is compared by the user's line.
    """
    return call.op, innermost(call.stack) if is_of_generated(call) else call.stack


def is_of_generated(call: Call) -> bool:
    """Whether code that was made while the program ran called, or handed the call on."""
    return any(is_generated(one.file) for one in call.stack if one.file[:8] != "<frozen ")
