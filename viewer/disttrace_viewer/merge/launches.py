"""Families of processes, and which processes of one name are one launch: a job that is tried again
bears its name again.

A process that ended before another one began is not of its launch: on one boot the steady clock
tells that exactly. Attempts of one launcher are one launch. Where no end was written, a rank that
begins again after the last sign of the one before it tells.

Wall clocks of hosts may be apart by more than a try lasts, so each boot's launches are told apart
by themselves and then brought together: in their order, by time, or by ranks that each lacks.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import TypeVar

from disttrace_viewer.merge.store_servers import SLACK_NS, Life
from disttrace_viewer.trace.process import Process
from disttrace_viewer.trace.values import dataclass, field, together

K = TypeVar("K", bound=Hashable)


class Union:
    """Sets that grow together (union-find)."""

    def __init__(self, count: int) -> None:
        self._above = list(range(count))

    def find(self, item: int) -> int:
        while self._above[item] != item:
            self._above[item] = self._above[self._above[item]]
            item = self._above[item]
        return item

    def join(self, items: Iterable[int]) -> None:
        roots = {self.find(item) for item in items}
        if roots:
            least = min(roots)
            for root in roots:
                self._above[root] = least

    def all(self) -> list[int]:
        return [self.find(item) for item in range(len(self._above))]


def families(processes: Sequence[Process]) -> Union:
    """Processes by the traced one from which they descend; an agent begins a family."""
    index = {p.id: p.index for p in processes}
    union = Union(len(processes))
    for parent, of in same(processes, lambda p: None if p.is_agent else p.parent).items():
        # If the parent left no journal, its children are siblings all the same.
        union.join([*of, *([index[parent]] if parent in index else [])])
    return union


def same(processes: Iterable[Process], key: Callable[[Process], K | None]) -> dict[K, list[int]]:
    """The processes (by index) that have a key in common; None is none."""
    keyed = ((key(process), process.index) for process in processes)
    return together((value, index) for value, index in keyed if value is not None)


APART_NS = 60_000_000_000
"""Hosts whose clocks are further apart are not brought together by their ranks."""


@dataclass(slots=True)
class Launch:
    """Some processes of one name that lived together."""

    members: list[int]
    start_ns: int
    end_ns: int
    until_ns: int
    """When the last of them had ended, as far as is known."""
    ranks: dict[int, int] = field(default_factory=dict)
    """Until when each rank lived, as far as known."""
    last_ns: int | None = None
    """The latest of these."""
    boots: set[str | None] = field(default_factory=set)
    world: int = 0

    def takes(self, other: Launch, begun: Mapping[int, int]) -> bool:
        """Whether a later one of this boot belongs to it; ``begun``: when ranks began last."""
        last_ns = other.start_ns if self.last_ns is None else self.last_ns
        if last_ns < other.start_ns and any(begun[r] > last_ns for r in self.ranks):
            return False  # all ranks had given their last sign, and one of them begins again
        if any(self.ranks.get(rank, other.start_ns) < other.start_ns for rank in other.ranks):
            return False
        return other.start_ns <= self.until_ns

    def join(self, other: Launch) -> None:
        self.members += other.members
        self.start_ns = min(self.start_ns, other.start_ns)
        self.end_ns = max(self.end_ns, other.end_ns)
        self.until_ns = max(self.until_ns, other.until_ns)
        for rank, end in other.ranks.items():
            self.ranks[rank] = max(end, self.ranks.get(rank, end))
            self.last_ns = max(end, self.last_ns or end)
        self.boots |= other.boots
        self.world = max(self.world, other.world)

    def fits(self, other: Launch) -> bool:
        """Whether one of another boot has ranks of its own."""
        return self.boots.isdisjoint(other.boots) and self.ranks.keys().isdisjoint(other.ranks)

    def gap_ns(self, other: Launch) -> int:
        """How far they are apart by wall clocks; negative for as long as they lived together."""
        return max(self.start_ns, other.start_ns) - min(self.end_ns, other.end_ns)

    def lacks(self, other: Launch) -> bool:
        """Whether each has ranks that the other one lacks, of a world of one size."""
        both = len(self.ranks) + len(other.ranks)
        return bool(self.ranks and other.ranks) and self.world == other.world >= both


def launches(
    processes: Sequence[Process], families: Sequence[int], lives: Sequence[Life], of: Iterable[int]
) -> list[list[int]]:
    """Some processes of one name, by launch. ``families``: of each the one it descends from."""
    units: dict[tuple[int, str | None], Launch] = {}
    for index in of:
        unit = _alone(processes[index], lives[index])
        known = units.setdefault((families[index], lives[index].boot), unit)
        if known is not unit:
            known.join(unit)
    boots: dict[str | None, list[Launch]] = {}
    begun: dict[str | None, dict[int, int]] = {}
    ordered = sorted(units.items(), key=lambda item: item[1].start_ns)
    for (_, boot), unit in ordered:
        begun.setdefault(boot, {}).update(dict.fromkeys(unit.ranks, unit.start_ns))
    for (_, boot), unit in ordered:
        found = boots.setdefault(boot, [])
        if found and found[-1].takes(unit, begun[boot]):
            found[-1].join(unit)
        else:
            found.append(unit)
    return [launch.members for launch in _together(boots)]


def _alone(process: Process, life: Life) -> Launch:
    return Launch(
        members=[process.index],
        start_ns=life.start_ns,
        end_ns=life.end_ns,
        until_ns=life.until(life.boot),
        ranks={process.rank or 0: life.sign_ns} if process.is_rank else {},
        last_ns=life.sign_ns if process.is_rank else None,
        boots={life.boot},
        world=process.world_size or 0,
    )


def _together(boots: Mapping[str | None, list[Launch]]) -> list[Launch]:
    """The launches of all boots, those that are one on several put together."""
    first, *others = sorted(boots.values(), key=lambda found: (-len(found), found[0].start_ns))
    whole = list(first)
    for found in others:
        if len(found) == len(first) > 1 and _in_order(first, found):
            for launch, other in zip(first, found, strict=True):
                launch.join(other)
            continue
        for launch in found:
            _put(launch, whole, whole, SLACK_NS)
    parts = sorted(whole, key=lambda launch: launch.start_ns)
    whole = []
    for launch in parts:
        _put(launch, whole, [one for one in whole if one.lacks(launch)], APART_NS)
    return whole


def _in_order(first: Sequence[Launch], found: Sequence[Launch]) -> bool:
    """Whether they follow one another at the same distances, whatever the clocks show."""
    pairs = list(zip(first, found, strict=True))
    apart = [one.start_ns - other.start_ns for one, other in pairs]
    return max(apart) - min(apart) <= SLACK_NS and all(one.fits(other) for one, other in pairs)


def _put(launch: Launch, whole: list[Launch], among: Iterable[Launch], gap_ns: int) -> None:
    """Add a launch to the nearest of some that it may be one with; else it is one more."""
    near = [one for one in among if one.fits(launch) and one.gap_ns(launch) <= gap_ns]
    if near:
        min(near, key=lambda one: abs(one.start_ns - launch.start_ns)).join(launch)
    else:
        whole.append(launch)
