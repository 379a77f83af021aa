"""Which ranks make the others of their groups wait: exchanges in blocks, compared and tested.

A block is 2**shift exchanges of a group, by their numbers, which take half a second or longer in
the mean: all hosts speak of the same ones. The own delay of a rank at a place is the smaller of
two: by how much longer than the median of the others it was away, and by how much shorter inside,
where it waits for none. Lateness inherited from another group makes them differ, so it vanishes. It
is the measure of ``analysis/delays`` without a table of all operations.

Who has more bytes of its own there is as much longer away (experts with more tokens), and what is
usual among the others (batches of other lengths) is nobody's doing: neither is lateness.
"""

from __future__ import annotations

import math
import operator
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import median
from typing import NamedTuple

from disttrace_viewer.trace.values import dataclass, field, replace

SHORTEST_NS, OF_RANK_NS, LONGEST = 500_000_000, 2_000_000, 4
"""Where two or more are shorter in the mean (also than so much for each rank of the job) twice as
many exchanges make a block from then on; where that many times as long half."""
MOST_SHIFT = 20
_BEHIND = 2
"""So many blocks back an exchange may end late; one that is not whole by then never will be."""


class Sums(NamedTuple):
    """Of exchanges at a place: how many, ns away before and inside, bytes that the rank brought."""

    times: int
    away: int
    inside: int
    bytes: int = 0

    def plus(self, other: Sums) -> Sums:
        return Sums(*map(operator.add, self, other))


NOTHING = Sums(0, 0, 0)


class Released(NamedTuple):
    """One exchange of one process; times in nanoseconds, ``end`` on the clock of its journal.
    ``place`` stands for operation and line, and is empty where it does not wait for all others."""

    group: int
    seq: int
    place: str
    away: int
    inside: int
    end: int
    bytes: int = 0
    """What it brought itself."""


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
            places[place] = places.get(place, NOTHING).plus(sums)
        span_ns = self.span_ns + other.span_ns
        return replace(
            self, shift=self.shift + 1, index=self.index >> 1, span_ns=span_ns, places=places
        )


@dataclass(slots=True)
class _Begun:
    covered: int = 0
    last: int = 0
    places: dict[str, Sums] = field(default_factory=dict)


class Blocks:
    """Of one process in one group; ``shifts`` by group is shared on this host: all cut alike."""

    def __init__(
        self, group: str, rank: int, size: int, shifts: dict[str, int], *, world: int = 1
    ) -> None:
        self._group, self._rank, self._size = group, rank, size
        self._shortest_ns = max(SHORTEST_NS, world * OF_RANK_NS)
        self._shifts = shifts
        self._shift = -1
        self._open: dict[int, _Begun] = {}
        self._before: tuple[int, int] | None = None
        """The last whole block and its end."""
        self._spans = [0, 0]
        """How many of this size there were, and how long together."""

    def add(self, held: Released) -> Block | None:
        """The block that this exchange completes."""
        shift = self._shifts.setdefault(self._group, 0)
        if shift != self._shift:
            self._shift, self._before, self._spans = shift, None, [0, 0]
            self._open.clear()
        index = (held.seq - 1) >> shift
        one = self._open.get(index)
        if one is None:
            one = self._open[index] = _Begun()
            for old in [i for i in self._open if i < index - _BEHIND]:
                del self._open[old]
        one.covered += 1
        one.last = max(one.last, held.end)
        if held.place:
            sums = one.places.get(held.place, NOTHING)
            one.places[held.place] = sums.plus(Sums(1, held.away, held.inside, held.bytes))
        if one.covered < 1 << shift:
            return None
        del self._open[index]
        before, self._before = self._before, (index, one.last)
        if before is None or before[0] != index - 1:
            return None
        span_ns = one.last - before[1]
        self._spans = [self._spans[0] + 1, self._spans[1] + span_ns]
        usual_ns = self._spans[1] / self._spans[0]
        if self._spans[0] > 1 and usual_ns < self._shortest_ns and shift < MOST_SHIFT:
            self._shifts[self._group] = shift + 1
        elif self._spans[0] > 1 and usual_ns >= LONGEST * self._shortest_ns and shift:
            self._shifts[self._group] = shift - 1
        return Block(self._group, shift, index, self._rank, self._size, span_ns, one.places)


BETS = (0.45, 8.0), (0.25, 60.0)
"""How much is bet that a rank is late, and the most that an observation counts: the second sees at
once what is long late."""
MOST_LOST = 0.9
"""Of what a detector has, by one observation: it never falls to zero."""


class Detector:
    """Of one rank in one group. ``won`` is a logarithm."""

    __slots__ = ("_bet", "_highest", "count", "since", "total", "won")

    def __init__(self, bet: float = BETS[0][0], highest: float = BETS[0][1]) -> None:
        self._bet, self._highest = bet, highest
        self.won = 0.0
        self.count = 0
        """Observations since the last start; ``total`` is their sum, ``since`` when that was."""
        self.total = 0.0
        self.since = 0.0

    @property
    def mean(self) -> float:
        return self.total / self.count if self.count else 0.0

    def observe(self, value: float, allowance: float, spread: float, now: float) -> bool:
        """Take one more; whether it started anew. ``spread`` is of observations before this one."""
        y = min((value - allowance) / spread, self._highest)
        before = self.won
        self.won = max(before, 0.0) + math.log1p(max(self._bet * y, -MOST_LOST))
        anew = before <= 0.0
        if anew:
            self.count, self.total, self.since = 0, 0.0, now
        self.count += 1
        self.total += value
        return anew


RANK_HOURS = 10_000
"""In so many hours of ranks that are well there is one false alarm, or fewer."""
OF_SHARE = 0.5
"""Of the share from which a rank is reported: what is allowed to any rank."""
EARLY, EARLY_S = 0.3, 25.0
"""So long after a group's first block, ranks are unlike each other: of less nothing is reported."""
OVER = math.log(1_000)
"""Won by betting that a rank is late no more: then it is over."""
LATE_S = 15.0
"""After so long a block is judged without the members that are missing, if most are there."""
MOST_GROUPS = 20_000
_KEPT = 64
GONE_S = 120.0
"""A group in which nothing happened for so long is no sign of a slow rank."""
_OF_NEW = 0.05
_NS_PER_HOUR = 3600e9


@dataclass(frozen=True, slots=True)
class Slow:
    """A rank that makes ``others`` members of a group wait for ``share`` of their time, ``since``
    then (unix seconds); ``place`` before which most of it goes; ``rank_hours`` that these have
    lost."""

    rank: int
    group: str
    others: int
    share: float
    since: float
    place: str
    rank_hours: float
    waiting: tuple[int, ...] = ()
    """The others, those that are known."""


@dataclass(slots=True)
class _Watched:
    """One rank in one group."""

    ups: list[Detector] = field(default_factory=lambda: [Detector(*one) for one in BETS])
    down: Detector = field(default_factory=Detector)
    places: dict[str, float] = field(default_factory=dict)
    last: float | None = None
    usual: float = 0.0
    """Its share, over the newest observations."""
    lost_ns: float = 0.0
    slow: bool = False

    @property
    def up(self) -> Detector:
        return max(self.ups, key=lambda one: one.won)


@dataclass(slots=True)
class _Group:
    size: int
    begun: float
    """When its first block came."""
    blocks: dict[tuple[int, int], dict[int, Block]] = field(default_factory=dict)
    first: dict[tuple[int, int], float] = field(default_factory=dict)
    watched: dict[int, _Watched] = field(default_factory=dict)
    spread: float | None = None
    looks: int = 0
    done: tuple[int, int] = (0, -1)
    """Shift and index of the newest block that was judged."""
    seen: float = 0.0


class SlowRanks:
    """Everything known of the ranks of a job, and who is slow now."""

    def __init__(self, share: float) -> None:
        self._share = share
        self._allowance = OF_SHARE * share
        self._groups: dict[str, _Group] = {}
        self._tests: Counter[int] = Counter()
        self.rank_hours = 0.0
        """Watched so far, of ranks in groups."""

    def add(self, blocks: Iterable[Block], now: float) -> None:
        """Take what came, as often as it may be; judge what is whole. ``now``: unix seconds."""
        touched = set()
        for block in blocks:
            if block.group not in self._groups and len(self._groups) >= MOST_GROUPS:
                continue
            group = self._groups.setdefault(block.group, _Group(block.size, now))
            if (block.shift, block.index) <= group.done and block.shift == group.done[0]:
                continue
            self._put(group, block, now)
            touched.add(block.group)
            group.seen = now
        for name, group in list(self._groups.items()):
            if name in touched or group.blocks:
                self._judge(group, now)
            elif now - group.seen > GONE_S:
                self._tests.subtract(group.watched.keys())
                del self._groups[name]

    def slow(self) -> list[Slow]:
        found = [
            self._report(name, rank, group, one)
            for name, group in self._groups.items()
            for rank, one in group.watched.items()
            if one.slow
        ]
        return sorted(found, key=lambda one: -one.share)

    def leaning(self, rank: int) -> float | None:
        """The share of a rank so far, reported or not; None: it is not known any more."""
        found = [g.watched[rank].up for g in self._groups.values() if rank in g.watched]
        return max((d.mean if d.won > 0 else 0.0 for d in found), default=None)

    def _put(self, group: _Group, block: Block, now: float) -> None:
        """With its neighbour, where others cut longer ones."""
        longest = max((shift for shift, _ in group.blocks), default=block.shift)
        while block.shift < longest:
            beside = group.blocks.get((block.shift, block.index ^ 1), {}).pop(block.rank, None)
            if beside is None:
                break
            block = block.joined(beside)
        key = (block.shift, block.index)
        group.blocks.setdefault(key, {})[block.rank] = block
        group.first.setdefault(key, now)

    def _judge(self, group: _Group, now: float) -> None:
        for key in sorted(group.blocks):
            rows = group.blocks[key]
            late = now - group.first[key] > LATE_S
            if len(rows) < group.size and not late:
                continue
            del group.blocks[key], group.first[key]
            if len(rows) > 1 and 2 * len(rows) > group.size:
                group.done = key
                self._compare(group, [*rows.values()], now)
        while len(group.blocks) > _KEPT:
            oldest = min(group.first, key=lambda key: group.first[key])
            del group.blocks[oldest], group.first[oldest]

    def _compare(self, group: _Group, rows: Sequence[Block], now: float) -> None:
        span_ns = median(one.span_ns for one in rows)
        if span_ns <= 0:
            return
        delays = own_delays(rows)
        shares = {one.rank: sum(delays[one.rank].values()) / span_ns for one in rows}
        spread = max(group.spread or 0.0, self._allowance / 2)
        began = now - span_ns / 1e9
        changes = []
        least = max(self._share, EARLY if began - group.begun < EARLY_S else 0.0)
        before = {r: group.watched[r].usual if r in group.watched else 0.0 for r in shares}
        usual = _of_others(before)
        for rank, share in shares.items():
            one = group.watched.get(rank)
            if one is None:
                one = group.watched[rank] = _Watched()
                self._tests[rank] += 1
            if one.last is not None:
                changes.append(abs(share - one.last))
            one.last = share
            one.usual += max(_OF_NEW, 1 / (group.looks + 1)) * (share - one.usual)
            if group.spread is not None:
                beyond = share - max(usual[rank], 0.0)
                self._observe(one, rank, beyond, spread, began, least)
                for place, delay in delays[rank].items():
                    one.places[place] = one.places.get(place, 0.0) + delay
                one.lost_ns += max(share, 0.0) * span_ns * (group.size - 1)
        self.rank_hours += len(rows) * span_ns / _NS_PER_HOUR
        if changes:  # by how much one differs from one's own last, so that a constant lead is none
            group.looks += 1
            weight = max(_OF_NEW, 1 / group.looks)
            new = 1.4826 * median(changes) / math.sqrt(2)
            group.spread = (1 - weight) * (group.spread or 0.0) + weight * new

    def _observe(
        self, one: _Watched, rank: int, share: float, spread: float, began: float, least: float
    ) -> None:
        if one.slow:
            one.up.count += 1
            one.up.total += share
            one.down.observe(-share, -self._allowance, spread, began)
            if one.down.won >= OVER:
                one.slow = False
                one.ups, one.down = _Watched().ups, Detector()
            return
        anew = [up.observe(share, self._allowance, spread, began) for up in one.ups]
        if all(anew):
            one.places.clear()
            one.lost_ns = 0.0
        one.slow = one.up.won >= self.threshold(rank) and one.up.mean >= least

    def threshold(self, rank: int) -> float:
        """Logarithm of how often, in observations, a false alarm is allowed: an observation takes
        half a second or more, and groups and bets share its rate (Bonferroni)."""
        per_hour = _NS_PER_HOUR / SHORTEST_NS
        return math.log(RANK_HOURS * per_hour * max(1, self._tests[rank]) * len(BETS))

    def _report(self, name: str, rank: int, group: _Group, one: _Watched) -> Slow:
        place = max(one.places, key=lambda p: one.places[p], default="")
        return Slow(
            rank=rank,
            group=name,
            others=group.size - 1,
            share=one.up.mean,
            since=one.up.since,
            place=place,
            rank_hours=one.lost_ns / _NS_PER_HOUR,
            waiting=tuple(sorted(group.watched.keys() - {rank})),
        )


def own_delays(rows: Sequence[Block]) -> dict[int, dict[str, float]]:
    """By rank and place how many nanoseconds it was late by its own doing; negative: it waited."""
    found: dict[int, dict[str, float]] = {one.rank: {} for one in rows}
    for place in {place for one in rows for place in one.places}:
        there = {one.rank: one.places[place] for one in rows if place in one.places}
        usual = Counter(sums.times for sums in there.values()).most_common(1)[0][0]
        there = {rank: sums for rank, sums in there.items() if sums.times == usual}
        if len(there) < 2:
            continue
        away = _of_others({rank: sums.away for rank, sums in there.items()})
        inside = _of_others({rank: sums.inside for rank, sums in there.items()})
        sizes = _of_others({rank: sums.bytes for rank, sums in there.items()})
        for rank, sums in there.items():
            more = max(1.0, sums.bytes / sizes[rank]) if sizes[rank] else 1.0
            longer = sums.away - more * away[rank]
            found[rank][place] = min(longer, inside[rank] - sums.inside)
    return found


def _of_others(values: Mapping[int, float]) -> dict[int, float]:
    """For each the median of the others; of none 0."""
    if len(values) < 2:
        return dict.fromkeys(values, 0.0)
    order = sorted(values, key=lambda rank: values[rank])
    rest = len(order) - 1
    low, high = (rest - 1) // 2, rest // 2
    found = {}
    for at, rank in enumerate(order):
        middle = values[order[low + (low >= at)]] + values[order[high + (high >= at)]]
        found[rank] = middle / 2
    return found


AGAIN_S = 3600.0
"""At most one line in so long of each culprit."""
TOGETHER_S = 120.0
"""So long the other ranks of a host have to become slow as well, once most of them lean to it."""
MOST = 8
"""Lines in an hour: of more there is no more to learn."""


@dataclass(frozen=True, slots=True)
class Notice:
    """One line: ``slow`` ranks, of a whole ``host`` or None; ``over``: they are not slow now."""

    slow: tuple[Slow, ...]
    host: str | None
    over: bool = False


class Telling:
    """What was reported, so that nothing is twice."""

    def __init__(self, share: float) -> None:
        self._share = share
        self._seen: dict[int, float] = {}
        """When a rank was first found to be slow."""
        self._reported_at: dict[tuple[int, ...], float] = {}
        self._open: dict[tuple[int, ...], Notice] = {}
        """What was reported and is not over."""

    def due(
        self,
        slow: Sequence[Slow],
        hosts: Mapping[int, str],
        leaning: Callable[[int], float | None],
        now: float,
    ) -> list[Notice]:
        """Lines that are due. ``hosts`` by rank; ``leaning``: a rank's share so far, if known."""
        ranks = {one.rank: one for one in reversed(slow)}  # the worst of a rank's groups
        self._seen = {rank: self._seen.get(rank, now) for rank in ranks}
        found, taken = [], set[int]()
        for rank, one in ranks.items():
            beside = sorted(r for r, host in hosts.items() if host == hosts.get(rank))
            if rank in taken:
                continue
            whole = len(beside) > 1 and len(set(hosts.values())) > 1
            if whole and all(r in ranks for r in beside):
                taken.update(beside)
                found.append(Notice(tuple(ranks[r] for r in beside), hosts[rank]))
            elif not (
                whole
                and now - self._seen[rank] < TOGETHER_S
                and all((leaning(r) or 0.0) >= self._share / 2 for r in beside)
            ):
                found.append(Notice((one,), None))
        lines = self._ended(ranks, leaning)
        for notice in sorted(found, key=lambda notice: -max(one.share for one in notice.slow)):
            key = tuple(one.rank for one in notice.slow)
            if any(set(key) <= set(other) and other != key for other in self._open):
                continue  # a part of a host that was reported
            self._reported_at = {k: at for k, at in self._reported_at.items() if now - at < AGAIN_S}
            if key not in self._reported_at and len(self._reported_at) < MOST:
                self._reported_at[key] = now
                lines.append(notice)
                self._open[key] = notice
            elif key in self._open:
                self._open[key] = notice
        return lines

    def _ended(
        self, ranks: Mapping[int, Slow], leaning: Callable[[int], float | None]
    ) -> list[Notice]:
        ended = [key for key in self._open if not any(rank in ranks for rank in key)]
        over = [(key, self._open.pop(key)) for key in ended]
        return [
            Notice(one.slow, one.host, over=True)
            for key, one in over
            if any(leaning(rank) is not None for rank in key)  # else they have stopped or ended
        ]
