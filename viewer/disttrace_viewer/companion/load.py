"""Whether the processes of a job ran since the last look, or waited for a processor.

Where more wants to run than there are processors, ten seconds of the clock are few of a rank's own:
what it spent in a run queue is no waiting of others for it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from disttrace.journal.proc import ROOT

_APART_S = 1.0
"""Two looks that are compared are at least so far apart."""
_NEVER = (0, 0)

Threads = Mapping[str, tuple[int, int]]
"""Per thread the nanoseconds that it ran, and that it waited in a run queue."""


@dataclass(frozen=True, slots=True)
class Share:
    """Of the time since a look before, the parts of the busiest and of the most starved thread."""

    ran: float = 0.0
    starved: float = 0.0
    over_s: float = 0.0


class Load:
    """Looks at processes of this host, by pid."""

    def __init__(self) -> None:
        self._looks: list[tuple[float, dict[int, Threads]]] = []

    def look(self, pids: Iterable[int]) -> None:
        """Note how long each of their threads has run and waited."""
        now = time.monotonic()
        while len(self._looks) > 1 and now - self._looks[-1][0] < _APART_S:
            self._looks.pop()
        self._looks = [*self._looks, (now, {pid: threads(pid) for pid in pids})][-2:]

    def share(self, pid: int) -> Share:
        """Since the look before the last one; nothing where there is none."""
        if len(self._looks) < 2:
            return Share()
        (then, before), (now, after) = self._looks[-2], self._looks[-1]
        old, over_s = before.get(pid), now - then
        if old is None or over_s < _APART_S:
            return Share()
        ran = starved = 0.0
        for thread, (running, waiting) in after.get(pid, {}).items():
            first = old.get(thread, _NEVER)
            ran = max(ran, (running - first[0]) / 1e9 / over_s)
            starved = max(starved, (waiting - first[1]) / 1e9 / over_s)
        return Share(min(ran, 1.0), min(starved, 1.0), over_s)


def threads(pid: int) -> Threads:
    """What ``/proc/PID/task/*/schedstat`` says; nothing where there is no such file."""
    found = {}
    try:
        names = os.listdir(f"{ROOT}/{pid}/task")
    except OSError:
        return {}  # it has ended, or another kernel
    for name in names:
        try:
            with open(f"{ROOT}/{pid}/task/{name}/schedstat", encoding="ascii") as file:
                ran, waited, _ = file.read().split()
                found[name] = int(ran), int(waited)
        except (OSError, ValueError):
            continue  # the thread has ended
    return found
