"""Which job started which: an evaluation under a launcher of its own is a job of its own, below the
job that waits for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from disttrace_viewer.trace.process import Process

INIT = 1
"""Whoever lost its parent is a child of this one, which started nobody."""


def started_by(processes: Sequence[Process], jobs: Mapping[int, int]) -> dict[int, set[int]]:
    """By job the other jobs of which a process started one of its own; ``jobs`` by process.

    A process says who started it, where the variable that is handed down reached it
    (``DISTTRACE_PARENT``); else its kernel's word on the parent stands.
    """
    index = {p.id: p.index for p in processes}
    of_pid: dict[tuple[str, int | None, int], list[Process]] = {}
    for one in processes:
        if one.boot_id is not None and one.pid is not None:
            of_pid.setdefault((one.boot_id, one.pid_ns, one.pid), []).append(one)
    found: dict[int, set[int]] = {}
    for one in processes:
        above = index.get(one.parent) if one.parent is not None else _by_number(one, of_pid)
        if above is not None and jobs[above] != jobs[one.index]:
            found.setdefault(jobs[one.index], set()).add(jobs[above])
    return found


def _by_number(
    one: Process, of_pid: Mapping[tuple[str, int | None, int], Sequence[Process]]
) -> int | None:
    """The process that bore the number of its parent when it started: numbers are used again."""
    if one.boot_id is None or one.ppid is None or one.ppid <= INIT:
        return None
    lived = [
        other
        for other in of_pid.get((one.boot_id, one.pid_ns, one.ppid), ())
        if other.start_ns <= one.start_ns
        and (other.exit is None or other.exit.t_ns >= one.start_ns)
    ]
    return max(lived, key=lambda other: other.start_ns).index if lived else None
