"""What processes still call while they are being ended, once their job had broken or stood still.

A library that tells the others of the end by a collective (Lightning broadcasts on SIGTERM), or a
``finally`` with a barrier, meets in it whoever had been waiting for this process: operations that
were never meant for one another. What stood before is the verdict.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from disttrace_viewer.analysis.sample import Sample
from disttrace_viewer.trace.operation import GROUPED, Op
from disttrace_viewer.trace.process import Process

STOPPING = "stop_workers"
"""What an agent records while it ends its workers."""
STOOD_NS = 3_000_000_000
"""Who had been waiting for so long when a handler of signals called something waits for others."""


def ended_from(
    sample: Sample, processes: Sequence[Process], interrupted_ns: int | None
) -> Mapping[int, float]:
    """From when on what a process begins is due to its end; none of those that nobody ended.

    A launcher ended them, or the job was interrupted; else from the first call in a handler of
    signals on, if others had been waiting for long by then.
    """
    stops = {op.process: op.begin_ns for op in sample.ops if op.call.op == STOPPING}
    by_launcher = {processes[p].id: ns for p, ns in stops.items()}
    handled = {op.process: op.begin_ns for op in reversed(sample.ops) if op.call.handler}
    found = {}
    for one in processes:
        times = [math.inf if interrupted_ns is None else interrupted_ns]
        stop_ns = by_launcher.get(one.parent or "", 0)
        if stop_ns > one.start_ns:
            times.append(stop_ns)
        if one.told is not None and one.told.event == "killed":
            times.append(one.told.t_ns)
        if one.index in handled and _stood(sample, handled[one.index], one.index):
            times.append(handled[one.index])
        if min(times) < math.inf:
            found[one.index] = min(times)
    return found


def _stood(sample: Sample, at_ns: int, process: int) -> bool:
    """Whether another process had been waiting for long, and still was."""
    return any(
        op.process != process
        and op.call.kind in GROUPED
        and op.holds
        and op.since_ns <= at_ns - STOOD_NS
        and (op.end_ns or math.inf) > at_ns
        for op in sample.ops
    )


def without(sample: Sample, ended: Mapping[int, float]) -> Sample:
    """The sample without what processes began from then on, as if they still stood before it."""

    def late(op: Op) -> bool:
        return op.begin_ns >= ended.get(op.process, math.inf)

    dropped = [op for op in sample.ops if late(op)]
    if not dropped:
        return sample
    kept = tuple(op for op in sample.ops if not late(op))
    of = {op.process for op in dropped}
    streams = {(op.process, op.call.stream) for op in dropped}
    did: dict[tuple[int, int], int] = {}
    for op in kept:
        if op.process in of:
            last = max(op.begin_ns, op.issued_ns or 0, op.wait_begin_ns or 0)
            at = op.end_ns if op.end_ns is not None and op.complete_ns is None else last
            did[op.process, op.thread] = max(did.get((op.process, op.thread), 0), at, last)
    active = {key: did.get(key, 0) if key[0] in of else ns for key, ns in sample.active.items()}
    return replace(
        sample,
        ops=kept,
        active=active,
        # The newest numbers of these are of what was left out.
        courses={key: one for key, one in sample.courses.items() if key not in streams},
        history={key: one for key, one in sample.history.items() if key not in streams},
        exact=sample.exact - streams,
    )
