"""What others saw of a process's end: who lost it, kept its connection, waited for it, lived on.

A job of thousands may lose thousands at once, so what a question needs is sorted once.
"""

from __future__ import annotations

import math
import sys
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence, Set
from functools import cached_property

from disttrace_viewer.analysis.process_ends import CASCADE, MISSED_NS, SILENT, TOGETHER_NS
from disttrace_viewer.evidence.evidence import Evidence
from disttrace_viewer.evidence.wait import Wait
from disttrace_viewer.trace.operation import Op, is_closed

Witnessed = Mapping[int, tuple[tuple[int, int], ...]]
"""Per process, what the two others that tell most of it tell, each with who does."""


class Witnesses:
    """What the waits, the lost connections and the ends of a trace show about one process's end."""

    def __init__(self, evidence: Evidence, waits: Sequence[Wait]) -> None:
        self.evidence = evidence
        self.waits = waits

    def silent_with(self, process: int) -> frozenset[int]:
        """Those that fell silent at one time with it, itself among them."""
        at = self.evidence.ends[process].t_ns
        first = bisect_left(self._silent, (at - TOGETHER_NS, -1))
        last = bisect_right(self._silent, (at + TOGETHER_NS, sys.maxsize))
        return frozenset(p for _, p in self._silent[first:last])

    def noticed(self, process: int, together: Set[int] = frozenset()) -> bool:
        """Whether a process that lived on lost its connection to a silent one after its last sign.

        Those that fell silent ``together`` with it prove nothing, for who ends a job ends one after
        the other. Nor does what was lost when another fell silent, much later than this one, or
        after another timed out over it: those who time out end, and that closes connections too.
        """
        closed, at = self.evidence.closed, self.evidence.ends[process].t_ns
        until_ns = min((ns for ns, _ in self._given_up.get(process, ())), default=math.inf)
        for number in range(bisect_left(closed, at, key=_end_ns), len(closed)):
            op = closed[number]
            if _end_ns(op) > until_ns:
                return False
            if op.process == process or op.process in together or not self._could_lose(op, process):
                continue
            if not self._lost_another(op, at + TOGETHER_NS, together):
                return True
        return False

    def kept_open(self, process: int) -> bool:
        """Whether a rank waited for it, or in one exchange with it, for long after its last sign,
        on a backend that notices at once when a process ends, and lost no connection: then it still
        was there.
        """
        until_ns = -self._of_others(self._kept, process, default=0)
        return until_ns - self.evidence.ends[process].t_ns > MISSED_NS

    def outlived(self, process: int, together: Set[int]) -> bool:
        """Whether a member of its groups, none of ``together``, went on for long after it."""
        at = self.evidence.ends[process].t_ns
        for until_ns, other in self._by_life:
            if until_ns - at <= MISSED_NS:
                return False
            if other not in together and self._share_a_group(other, self._groups(process)):
                return True
        return False

    def awaited_since(self, process: int, default: int) -> int:
        """Since when others wait for a process."""
        return self._of_others(self._awaited, process, default)

    def awaited_before(self, process: int) -> bool:
        """Whether others had waited so long, for it or at all, that its end changed nothing."""
        evidence = self.evidence
        # One that holds the GIL gives no sign, but its CPU time was seen.
        usage = evidence.trace.processes[process].usage
        at = max(evidence.ends[process].t_ns, usage[-1].t_ns if usage else 0)
        if at - self.awaited_since(process, default=at) >= evidence.stall_ns:
            return True
        for since, other in self._workers_by_wait:
            end = evidence.ends[other]
            if other != process and not (end.over and end.t_ns < at - MISSED_NS):
                return at - since >= evidence.stall_ns  # the last of all others to begin
        return False

    def broke_after(self, processes: Iterable[int]) -> frozenset[int]:
        """Members of their groups whose failure passes on that communication broke since."""
        gone, ends = set(processes), self.evidence.ends
        at = min(ends[p].t_ns for p in gone)
        groups = frozenset[int]().union(*map(self._groups, gone))
        return frozenset(
            p
            for p, end in enumerate(ends)
            if end.how == CASCADE and end.t_ns >= at and p not in gone
            if self._share_a_group(p, groups)
        )

    @staticmethod
    def _of_others(reported: Witnessed, process: int, default: int) -> int:
        return next((ns for ns, other in reported.get(process, ()) if other != process), default)

    def _groups(self, process: int) -> frozenset[int]:
        return self.evidence.trace.groups_by_process.get(process, frozenset())

    def _share_a_group(self, process: int, groups: frozenset[int]) -> bool:
        return not groups.isdisjoint(self._groups(process))

    def _could_lose(self, op: Op, process: int) -> bool:
        """Whether it could lose that process: a member of its group, or its store's server."""
        trace = self.evidence.trace
        if op.call.group is not None:
            return op.call.group in self._groups(process)
        place = trace.place_by_id.get(trace.place_of(op.call) or "")
        return place is not None and (place.server == process or op.call.kind == "constructor")

    def _lost_another(self, op: Op, after_ns: int, together: Set[int]) -> bool:
        """Whether what it lost may be a process that fell silent then, and later than that."""
        at = _end_ns(op)
        last = bisect_right(self._silent, (at + TOGETHER_NS, sys.maxsize))
        first = bisect_left(self._silent, (max(at - TOGETHER_NS, after_ns + 1), -1))
        return any(
            p != op.process and p not in together and self._could_lose(op, p)
            for _, p in reversed(self._silent[first:last])
        )

    @cached_property
    def _silent(self) -> list[tuple[int, int]]:
        """Time and number of those that fell silent."""
        return sorted((e.t_ns, p) for p, e in enumerate(self.evidence.ends) if e.how == SILENT)

    @cached_property
    def _by_life(self) -> list[tuple[float, int]]:
        """Until when each one lived, those first that are not over."""
        lives = (
            (self.evidence.until_ns(p) if end.over else math.inf, p)
            for p, end in enumerate(self.evidence.ends)
        )
        return sorted(lives, reverse=True)

    @cached_property
    def _workers_by_wait(self) -> list[tuple[float, int]]:
        """Since when each worker waits, those first that do not, then those that began last."""
        since: dict[int, int] = {}
        for wait in self.waits:
            if not wait.side or wait.polled:
                began_ns = wait.op.since_ns
                since[wait.process] = min(began_ns, since.get(wait.process, began_ns))
        workers = (p.index for p in self.evidence.trace.processes if p.is_rank)
        return sorted(((since.get(p, math.inf), p) for p in workers), reverse=True)

    @cached_property
    def _awaited(self) -> Witnessed:
        """Since when others wait for each process."""
        return _least_two((w.targets, w.op.since_ns, w.process) for w in self.waits)

    @cached_property
    def _given_up(self) -> Witnessed:
        """When those that waited for each process reached a time limit."""
        return _least_two(
            (w.targets, w.op.end_ns, w.process)
            for w in self.waits
            if w.op.end_ns and not is_closed(w.op.error)
        )

    @cached_property
    def _kept(self) -> Witnessed:
        """Until when (negative: the last counts) others were in a wait with each one, or for it."""
        lasting = [
            (-(w.op.end_ns or self.evidence.until_ns(w.process)), w)
            for w in self.waits
            if not w.op.on_device and (w.op.error is None or not is_closed(w.op.error))
        ]
        return _least_two(
            (members, until, wait.process)
            for until, wait in lasting
            for members in (wait.targets, wait.arrived)
        )


def _least_two(entries: Iterable[tuple[tuple[int, ...], int, int]]) -> Witnessed:
    """Per process the two least values that different others tell of it, in order. An entry:
    processes, which waits of one exchange share as one object, the value, and who tells it."""
    shared: dict[int, tuple[tuple[int, ...], list[tuple[int, int]]]] = {}
    for about, value, process in entries:
        shared.setdefault(id(about), (about, []))[1].append((value, process))
    found: dict[int, tuple[tuple[int, int], ...]] = {}
    for about, values in shared.values():
        least = _two_least(values)
        for process in about:
            found[process] = _two_least((*found.get(process, ()), *least))
    return found


def _two_least(values: Sequence[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    first = min(values)
    second = min((value for value in values if value[1] != first[1]), default=None)
    return (first,) if second is None else (first, second)


def _end_ns(op: Op) -> int:
    return op.end_ns or 0
