"""The verdict on a job that breaks while it is read.

Journals are read one after another. Who is read first may act, and end, before the last one is
read, which tells of it: then a process seems to have ended, or to be missing, before it did what
its journal says by now. So what is seen to have just broken is read once more, from the beginning.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from disttrace_viewer.analysis.process_ends import MISSED_NS
from disttrace_viewer.evidence.evidence import Evidence

T = TypeVar("T")

MOST = 3
PAUSE_S = 0.2
RECENT_NS = 10_000_000_000


def settled(read: Callable[[], T], evidence_of: Callable[[T], Sequence[Evidence]]) -> T:
    """What ``read`` gives once everything that is broken in it broke before it began to read."""
    known: set[object] = set()
    found = read()
    for _ in range(MOST):
        broken = {one for evidence in evidence_of(found) for one in _just_broken(evidence)}
        if broken <= known:
            break
        known |= broken
        del found  # of a large job two do not fit
        time.sleep(PAUSE_S)
        found = read()
    return found


def _just_broken(evidence: Evidence) -> set[object]:
    """Ends of processes, and operations that ended badly, so shortly before the newest sign of life
    that a journal may have been read in between, if that sign is of now.
    """
    whole = all(end.exit_word is not None for end in evidence.ends)  # nothing follows that record
    if whole or time.time_ns() - evidence.cut_ns > RECENT_NS:
        return set()
    processes = evidence.trace.processes
    since_ns = evidence.cut_ns - MISSED_NS
    found: set[object] = {
        processes[i].id for i, end in enumerate(evidence.ends) if end.over and end.t_ns > since_ns
    }
    return found | {
        (processes[op.process].id, op.number)
        for failed in evidence.failed.values()
        for op in failed
        if (op.end_ns or 0) > since_ns
    }
