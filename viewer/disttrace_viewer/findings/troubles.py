"""What hosts, devices and links said of themselves around the time of a wait."""

from __future__ import annotations

from collections.abc import Iterable

from disttrace.journal.format import DEVICE, HOST, LINK
from disttrace_viewer.evidence.waits.wait import Wait
from disttrace_viewer.findings.case import Case
from disttrace_viewer.trace.process import Trouble

BEFORE_NS = 60_000_000_000
"""So long before a wait began it may have come about: a device is at work later than its host."""
_ORDER = (DEVICE, LINK, HOST)


def around(case: Case, wait: Wait, members: Iterable[int]) -> list[tuple[int, Trouble]]:
    """By the process in whose journal it stands; devices first, then links. Of the hosts of
    ``members`` only, and nothing of devices where the operation is on none.
    """
    processes = case.evidence.trace.processes
    hosts = {processes[p].clock for p in members}
    since_ns = wait.op.begin_ns - BEFORE_NS
    found = [
        (process.index, one)
        for process in processes
        if process.clock in hosts
        for one in process.troubles
        if one.where in _ORDER and one.t_ns >= since_ns
        if wait.op.on_device or (one.where != DEVICE and one.code is None)
    ]
    return sorted(found, key=lambda each: (_ORDER.index(each[1].where), each[1].t_ns))
