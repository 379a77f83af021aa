"""Exchanges of one process summed up in blocks that all members of a group cut alike.

A block is as many exchanges of a group, by their numbers, as take a second, or longer in a job of
many ranks: 2**shift of them, from a multiple of that on. So all hosts speak of the same exchanges,
whatever their clocks say, and two neighbours make one of the next size.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from disttrace_viewer.companion.slow.holds import Held

SHORTEST_NS, OF_RANK_NS, LONGEST = 1_000_000_000, 2_000_000, 4
"""Of what is shorter (also than so much for each rank of the job, for one host compares all) twice
as many exchanges make a block from then on; of what is that many times as long half.
"""
MOST_SHIFT = 20
_BEHIND = 2
"""So many blocks back an exchange may end late; one that is not whole by then never will be."""

Sums = tuple[int, int, int]
"""Exchanges at a place, and how long they were away before and inside, in nanoseconds."""


@dataclass(frozen=True, slots=True)
class Block:
    """One rank's part in some exchanges of a group; ``index`` counts blocks of this size."""

    group: str
    shift: int
    index: int
    rank: int
    size: int
    """Members of the group."""
    span_ns: int
    """From the end of the block before to the end of this one."""
    places: Mapping[str, Sums]

    def joined(self, other: Block) -> Block:
        """Of this one and its neighbour the block of the next size."""
        places = dict(self.places)
        for place, sums in other.places.items():
            n, away, inside = places.get(place, (0, 0, 0))
            places[place] = (n + sums[0], away + sums[1], inside + sums[2])
        span_ns = self.span_ns + other.span_ns
        index = self.index >> 1
        return Block(self.group, self.shift + 1, index, self.rank, self.size, span_ns, places)


class _Open:
    __slots__ = ("covered", "last", "places")

    def __init__(self) -> None:
        self.covered = self.last = 0
        self.places: dict[str, list[int]] = {}


class Blocks:
    """Of one process in one group; ``shifts`` is shared by all of them on this host, by group, for
    they are to cut alike."""

    def __init__(
        self, group: str, rank: int, size: int, shifts: dict[str, int], *, world: int = 1
    ) -> None:
        """``world``: ranks of the job."""
        self._group, self._rank, self._size = group, rank, size
        self._shortest_ns = max(SHORTEST_NS, world * OF_RANK_NS)
        self._shifts = shifts
        self._shift = -1
        self._open: dict[int, _Open] = {}
        self._before: tuple[int, int] | None = None
        """The last whole block and its end."""

    def add(self, held: Held) -> Block | None:
        """The block that this exchange completes."""
        shift = self._shifts.setdefault(self._group, 0)
        if shift != self._shift:
            self._shift, self._before = shift, None
            self._open.clear()
        index = (held.seq - 1) >> shift
        one = self._open.get(index)
        if one is None:
            one = self._open[index] = _Open()
            for old in [i for i in self._open if i < index - _BEHIND]:
                del self._open[old]
        one.covered += 1
        one.last = max(one.last, held.end)
        if held.place:
            sums = one.places.setdefault(held.place, [0, 0, 0])
            sums[0] += 1
            sums[1] += held.away
            sums[2] += held.inside
        if one.covered < 1 << shift:
            return None
        del self._open[index]
        before, self._before = self._before, (index, one.last)
        if before is None or before[0] != index - 1:
            return None
        span_ns = one.last - before[1]
        self._fit(shift, span_ns)
        places = {place: (n, away, inside) for place, (n, away, inside) in one.places.items()}
        return Block(self._group, shift, index, self._rank, self._size, span_ns, places)

    def _fit(self, shift: int, span_ns: int) -> None:
        if span_ns < self._shortest_ns and shift < MOST_SHIFT:
            self._shifts[self._group] = shift + 1
        elif span_ns >= LONGEST * self._shortest_ns and shift:
            self._shifts[self._group] = shift - 1
