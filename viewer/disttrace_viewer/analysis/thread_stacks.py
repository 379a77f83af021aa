"""Where processes stand: what their threads noted of it, unless they did something since."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import replace

from disttrace.journal.code_files import is_library
from disttrace_viewer.analysis.operation import innermost
from disttrace_viewer.trace.model import Trace
from disttrace_viewer.trace.operation import Op
from disttrace_viewer.trace.process import Process, Stack, StackSample

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
