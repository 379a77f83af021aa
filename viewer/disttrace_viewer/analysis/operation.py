"""The line of the program behind an operation, and where threads were sampled last."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Set
from dataclasses import replace

from disttrace.journal.code_files import is_generated, is_library, is_program, programs_frame
from disttrace_viewer.trace.model import Call, Trace
from disttrace_viewer.trace.operation import Op
from disttrace_viewer.trace.process import Frame, Process, Stack, StackSample

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
    """The line of a caller at which an operation parted from others: the innermost that is not
    theirs, where they came from its own line; else that of a function which made theirs by another
    of its lines. None where that is its own line, or nothing tells.
    """
    own = frame(op)
    shared = own is not None and own.line in others.get((own.file, own.function), ())
    for one in op.call.stack:
        lines = others.get((one.file, one.function)) if is_program(one.file) else None
        if shared and is_program(one.file) and one.line not in (lines or ()):
            return one
        if not shared and lines is not None:
            return None if one.line in lines or one == own else one
    return None


def site(call: Call) -> Site:
    """Where a call was made. Each rank generates code of its own, under names and lines of its own:
    what called from there is compared by the user's line.
    """
    return call.op, innermost(call.stack) if is_of_generated(call) else call.stack


def is_of_generated(call: Call) -> bool:
    """Whether code that was made while the program ran called, or handed the call on."""
    return any(is_generated(one.file) for one in call.stack if one.file[:8] != "<frozen ")


_MAIN = 0
"""The number of the thread that opened the journal."""


def latest_samples(
    trace: Trace, active: Mapping[tuple[int, int], int], at_work: Mapping[int, Set[int]]
) -> Mapping[int, StackSample]:
    """By process: the latest note of its main thread, if it is newer than all that thread did.

    A process without a note of that thread shows any other's that holds by the same rule; so does
    one whose main thread only waits for the thread that communicates (a pool, asyncio), or runs
    nothing of the program (a worker of Ray's).
    ``active`` tells when each thread last did anything, ``at_work`` which threads of a process take
    part in collectives and messages.
    """
    if not any(process.latest_samples for process in trace.processes):
        return {}
    found = {}
    for process in trace.processes:
        holding = {
            thread: sample
            for thread, sample in process.latest_samples.items()
            if sample.stack and sample.t_ns >= active.get((process.index, thread), 0)
        }
        if _MAIN in process.latest_samples:
            chosen = _communicating(holding, at_work.get(process.index, frozenset()))
            holding = {thread: one for thread, one in holding.items() if thread == chosen}
        if holding:
            found[process.index] = next(iter(holding.values()))
    return found


def awaited(op: Op, process: Process) -> Op:
    """The operation with the place where the main thread waits for the one that called it, if that
    runs nothing of the program's; else itself.
    """
    if op.thread == _MAIN or op.end_ns is not None or _in_program(op.call.stack):
        return op
    main = process.latest_samples.get(_MAIN)
    if main is None or main.t_ns < op.begin_ns or not main.stack:
        return op
    waits = _in_program(main.stack) and _waits_for_thread(main.stack)
    return replace(op, awaited_at=main.stack) if waits else op


def _communicating(holding: Mapping[int, StackSample], at_work: Set[int]) -> int:
    """The thread that communicates, if it is inside the program while the main one waits for it, or
    is a library's alone.
    """
    main = holding.get(_MAIN)
    if main is None or _MAIN in at_work:
        return _MAIN
    if _in_program(main.stack) and not _waits_for_thread(main.stack):
        return _MAIN
    inside = (t for t in sorted(at_work & holding.keys()) if _in_program(holding[t].stack))
    return next(inside, _MAIN)


def _waits_for_thread(stack: Stack) -> bool:
    inner = stack[0]
    return inner.file.endswith(("/threading.py", "/selectors.py")) and is_library(inner.file)


def _in_program(stack: Stack) -> bool:
    found = innermost(stack)
    return found is not None and not is_library(found.file)
