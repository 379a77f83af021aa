"""A job that is ended from outside: since when, and what stood before.

What breaks after that says nothing about the program.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from disttrace_viewer.analysis.process_ends import (
    ALIVE,
    CASCADE,
    OWN,
    SILENT,
    STOPPED_AGENT,
    End,
    is_interrupt,
)
from disttrace_viewer.trace.operation import Op
from disttrace_viewer.trace.process import Process

INTERRUPT_SLACK_NS = 1_000_000_000
"""A child may be gone before its parent, interrupted at the same moment, has said so."""


def interrupted_ns(processes: Iterable[Process]) -> int | None:
    """When the job was interrupted, in unix nanoseconds; None if it was not, or only one rank was.

    A launcher that was interrupted stands for all that it started, and for the job where no rank
    was started yet. Without one it takes two: a single rank may have been sent a signal, and its
    peers follow from that.
    """
    processes = tuple(processes)
    found = {p.index: at_ns for p in processes if (at_ns := _interrupt_ns(p)) is not None}
    launchers = {p.id for p in processes if p.index in found}
    started = [p for p in processes if p.parent in launchers]
    if len(found) < 2 and not (started or (found and all(p.is_agent for p in processes))):
        return None
    # Those of an attempt before were ended when it failed, and that was nobody's interrupt.
    newest = {p.parent: p.attempt for p in sorted(started, key=lambda p: p.attempt or 0)}
    last = (p for p in started if p.attempt == newest[p.parent])
    told = [p.told.t_ns for p in last if p.told is not None and p.told.event == "killed"]
    return min([*found.values(), *told])


def _interrupt_ns(process: Process) -> int | None:
    for failure in process.failures:
        if failure.thread == 0 and (failure.type == STOPPED_AGENT or is_interrupt(failure)):
            return failure.t_ns
    last = process.exit
    if last is None:
        return None
    uncaught = (last.how, last.code) == ("exception", None) and not process.failures
    return last.t_ns if uncaught or is_interrupt(last) else None


def undone(op: Op, at_ns: int) -> Op:
    """An operation as it was when the job was interrupted: what broke since was in flight."""
    if (
        op.error is None
        or op.end_ns is None
        or op.end_ns < at_ns - INTERRUPT_SLACK_NS
        or op.refused
    ):
        return op
    return replace(op, error=None, end_ns=None, complete_ns=None)


def since_interrupt(found: Sequence[End], at_ns: int | None) -> tuple[End, ...]:
    """The ends of processes; those since the job was interrupted are due to that."""
    if at_ns is None:
        return tuple(found)
    return tuple(_since(end, at_ns) for end in found)


def since_told(found: Sequence[End], ended_from: Mapping[int, float]) -> tuple[End, ...]:
    """The ends of processes; what they fail of while they are being ended follows from that."""
    return tuple(
        replace(end, how=CASCADE)
        if end.how == OWN and end.t_ns >= ended_from.get(process, math.inf)
        else end
        for process, end in enumerate(found)
    )


def _since(end: End, at_ns: int) -> End:
    slack = 0 if end.how == OWN else INTERRUPT_SLACK_NS
    if end.how == ALIVE or end.t_ns < at_ns - slack:
        return end
    return replace(end, how=SILENT, told_to_end=True, interrupted=True)
