"""Puts all processes on one time line: monotonic clocks of a boot become unix time."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from operator import ge, le
from typing import Any

import disttrace.journal.format as fmt
from disttrace_viewer.trace.model import Group, JobTrace, Member, Tables
from disttrace_viewer.trace.operation import SYNCHRONIZING
from disttrace_viewer.trace.process import Clock, Process
from disttrace_viewer.trace.values import dataclass, replace, together

UNKNOWN_NS = 1 << 62
"""Error of a clock of which no journal has a reading: of a process without definitions."""


def to_unix(clock: Clock, monotonic_ns: int) -> int:
    """Unix time of a monotonic reading."""
    drifted = round((monotonic_ns - clock.origin_ns) * clock.drift) if clock.drift else 0
    return monotonic_ns + clock.offset_ns - drifted


def realign(trace: JobTrace, clocks: tuple[Clock, ...]) -> JobTrace:
    """The trace as it was loaded, under other clocks (in the order of ``trace.clocks``)."""
    import polars as pl  # here, for clocks of states are read where there is none

    from disttrace_viewer.trace.columns import TIMES

    if clocks == trace.clocks:
        return trace
    table = trace.operations
    process = table["process"]

    def of(name: str, known: Sequence[Clock]) -> pl.Series:
        """What the clock of each operation's process has of this."""
        return pl.Series([getattr(known[p.clock], name) for p in trace.processes]).gather(process)

    old, new = of("offset_ns", trace.clocks), of("offset_ns", clocks)
    origin, drift = of("origin_ns", clocks), of("drift", clocks)
    for name in TIMES:
        monotonic = table[name] - old
        drifted = ((monotonic - origin) * drift).round().cast(pl.Int64)
        table = table.with_columns((monotonic + new - drifted).alias(name))
    processes, groups = moved_definitions(trace.processes, trace.groups, trace.clocks, clocks)
    operations = table.sort("begin_ns", "process", "number")
    tables = Tables(operations, trace.calls, trace.completions)
    return replace(trace, tables=tables, processes=processes, groups=groups, clocks=clocks)


def moved_definitions(
    processes: Sequence[Process],
    groups: Sequence[Group],
    was: Sequence[Clock],
    clocks: Sequence[Clock],
) -> tuple[tuple[Process, ...], tuple[Group, ...]]:
    """Processes and groups with all their times under other clocks."""
    changed = [new != old for new, old in zip(clocks, was, strict=True)]

    def member(one: Member) -> Member:
        clock = processes[one.process].clock
        if one.t_ns is None or not changed[clock]:
            return one
        t_ns = to_unix(clocks[clock], one.t_ns - was[clock].offset_ns)
        return replace(one, t_ns=t_ns)

    return tuple(
        _moved(p, was[p.clock], clocks[p.clock]) if changed[p.clock] else p for p in processes
    ), tuple(replace(g, members=tuple(map(member, g.members))) for g in groups)


def _moved(process: Process, old: Clock, new: Clock) -> Process:
    """A process with all its times under another clock."""

    def at(ns: int | None) -> int | None:
        return None if ns is None else to_unix(new, ns - old.offset_ns)

    def moved(value: Any) -> Any:
        if not value:
            return value  # as most are
        names = [name for name in getattr(value, "_fields", ()) if name in ("t_ns", "first_ns")]
        if names:
            return value._replace(**{name: at(getattr(value, name)) for name in names})
        if isinstance(value, Mapping):
            return {key: moved(one) for key, one in value.items()}
        return tuple(map(moved, value)) if isinstance(value, tuple) else value

    found: dict[str, Any] = {name: at(getattr(process, name)) for name in _OWN_TIMES}
    found |= {name: moved(getattr(process, name)) for name in _TIMED}
    return replace(process, **found)


_OWN_TIMES = ("start_ns", "last_ns", "heartbeat_ns")
_TIMED = (
    *("exit", "reported", "failures", "handling", "latest_samples", "samples", "workers"),
    *("sightings", "troubles", "usage", "digests", "nonfinite", "unreduced"),
)
"""Fields of a process whose values have times."""


JOINING = (*SYNCHRONIZING, "monitored_barrier")
"""Collectives that no member leaves before all came."""
MOST_DRIFT = 5e-4
"""Crystals are off by less."""
UNMET_NS = 50_000_000
"""How far wall clocks of hosts may be apart that never exchanged anything."""


Point = tuple[float, float]
"""(time, bound)."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """What exchanges show of ``clock - reference`` at times in ns after ``origin_ns``."""

    origin_ns: int
    upper: tuple[Point, ...]
    lower: tuple[Point, ...]


@dataclass(frozen=True, slots=True)
class ClockLine:
    """``offset_ns + drift * t``, and how far it may be off."""

    offset_ns: float
    drift: float
    error_ns: float


Side = tuple[int, int]
"""Of one clock in a collective the last begin and the first end, unix ns."""
Met = tuple[Hashable, Mapping[int, Side]]
"""The stream of a collective, and its sides by clock."""
Ways = Mapping[tuple[int, int], Sequence[tuple[int, int]]]
"""By the clocks of a sender and a receiver: begins of sends, and how much later receives ended."""
Edge = tuple[int, int]
"""Placed clock, and the clock that is placed by it."""


def place(
    clocks: Sequence[Clock], processes: Sequence[Process], met: Iterable[Met], ways: Ways
) -> tuple[Clock, ...]:
    """The clocks set right, by what their processes met in."""
    used = sorted({p.clock for p in processes})
    if len(used) < 2:
        return tuple(clocks)
    met = [(stream, sides) for stream, sides in met if len(sides) > 1]
    streams: dict[Hashable, set[int]] = {}
    for stream, sides in met:
        streams.setdefault(stream, set()).update(sides)
    both = {frozenset(way) for way in ways if way[::-1] in ways}
    joined = sorted({frozenset(of_stream) for of_stream in streams.values()} | both, key=sorted)
    root = _reference(processes)
    found = list(clocks)
    rejected: set[Edge] = set()
    # Two that a third one places may be apart by the errors of both.
    pairs = {(min(met), max(met)) for met in joined if len(met) == 2}
    pairs |= set(itertools.combinations(used, 2)) if len(used) <= _FEW else set()
    while True:
        edges = _tree(root, joined, rejected)
        others = pairs - {(min(edge), max(edge)) for edge in edges}
        bounds = _bounds([*edges, *sorted(others)], met, ways)
        unmet = {edge for edge in edges if edge not in bounds}
        if not unmet - rejected:
            break
        rejected |= unmet  # they met one way only, or in nothing that was over for both
    for edge in edges:
        reference, clock = edge
        line, old = fit(_left(clocks, found, edge, bounds[edge])), clocks[clock]
        by_ns, origin_ns = -round(line.offset_ns), bounds[edge].origin_ns - old.offset_ns
        above_ns = found[reference].error_ns if reference != root else 0
        found[clock] = replace(
            old, offset_ns=old.offset_ns + by_ns, moved_ns=by_ns, drift=line.drift,
            origin_ns=origin_ns, error_ns=round(line.error_ns) + above_ns,
        )  # fmt: skip
    if others and not any(clock.drift for clock in found):  # drift is not exact enough for it
        _settle(clocks, found, root, bounds)
    for clock in {*used} - {clock for _, clock in edges} - {root}:
        error = max(found[clock].error_ns, UNMET_NS)
        found[clock] = replace(found[clock], error_ns=error)
    return tuple(found)


def _bounds(edges: Iterable[Edge], met: Sequence[Met], ways: Ways) -> dict[Edge, Bounds]:
    """Bounds of the edges whose clocks exchanged both ways."""
    found = {}
    for above, clock in edges:
        upper = [(t + bound, bound) for t, bound in ways.get((above, clock), ())]
        lower = [(t, -bound) for t, bound in ways.get((clock, above), ())]
        for _, sides in met:
            if above in sides and clock in sides:
                (begin_above, end_above), (begin, end) = sides[above], sides[clock]
                upper.append((end, end - begin_above))
                lower.append((begin, begin - end_above))
        if upper and lower:
            origin = min(t for t, _ in (*upper, *lower))
            points = (
                tuple((float(t - origin), float(bound)) for t, bound in side)
                for side in (upper, lower)
            )
            found[above, clock] = Bounds(origin, *points)
    return found


def _left(
    was: Sequence[Clock], found: Sequence[Clock], edge: tuple[int, int], bounds: Bounds
) -> Bounds:
    """The bounds of an edge under the clocks that were found so far."""
    above, clock = edge
    if found[above] is was[above] and found[clock] is was[clock]:
        return bounds

    def moved(points: Sequence[Point]) -> Iterator[Point]:
        for t, by in points:
            here = bounds.origin_ns + round(t) - was[clock].offset_ns
            there = bounds.origin_ns + round(t - by) - was[above].offset_ns
            yield t, to_unix(found[clock], here) - to_unix(found[above], there)

    return Bounds(bounds.origin_ns, tuple(moved(bounds.upper)), tuple(moved(bounds.lower)))


def _settle(
    was: Sequence[Clock], found: list[Clock], root: int, bounds: Mapping[tuple[int, int], Bounds]
) -> None:
    """Move clocks to the middle of what all chains of bounds leave, if they leave anything."""
    ahead: dict[tuple[int, int], float] = {}  # by so much the second may be before the first
    for (above, clock), edge in bounds.items():
        left = _left(was, found, (above, clock), edge)
        ahead[clock, above] = min(by for _, by in left.upper)
        ahead[above, clock] = -max(by for _, by in left.lower)
    top, bottom, rounds = {root: 0.0}, {root: 0.0}, 0
    before: object = None
    while before != (top, bottom):
        before, rounds = (dict(top), dict(bottom)), rounds + 1
        for (one, other), most in ahead.items():
            if one in top:
                top[other] = min(top[one] + most, top.get(other, UNKNOWN_NS))
            if other in bottom:
                bottom[one] = max(bottom[other] - most, bottom.get(one, -UNKNOWN_NS))
        if rounds > len(found):
            return
    for number, most in top.items():
        old, by_ns = found[number], int((most + bottom[number]) // 2)
        error_ns = max(found[root].error_ns, int(most - bottom[number]) // 2)
        found[number] = replace(
            old, offset_ns=old.offset_ns + by_ns, moved_ns=old.moved_ns + by_ns, error_ns=error_ns
        )


_FEW = 8
"""Of so many clocks all pairs are compared, and of more those that exchanged messages."""


def _reference(processes: Sequence[Process]) -> int:
    """The clock that most processes go by; of equals, that of the lowest rank."""
    ranks = together((p.clock, 1 << 30 if p.rank is None else p.rank) for p in processes)
    return max(sorted(ranks), key=lambda clock: (len(ranks[clock]), -min(ranks[clock])))


def _tree(
    root: int, joined: Iterable[AbstractSet[int]], rejected: AbstractSet[tuple[int, int]]
) -> list[tuple[int, int]]:
    """A tree over clocks that met, from ``root``: the largest of the sets within reach first."""
    sets = [sorted(clocks) for clocks in joined]
    of_clock = together((clock, n) for n, clocks in enumerate(sets) for clock in clocks)
    placed = {root}
    edges: list[tuple[int, int]] = []
    waiting = [(-len(sets[number]), number, root) for number in of_clock.get(root, ())]
    heapq.heapify(waiting)
    while waiting:
        _, number, reference = heapq.heappop(waiting)
        for clock in sets[number]:
            if clock in placed or (reference, clock) in rejected:
                continue
            placed.add(clock)
            edges.append((reference, clock))
            for other in of_clock[clock]:
                if other != number:
                    heapq.heappush(waiting, (-len(sets[other]), other, clock))
    return edges


def fit(bounds: Bounds) -> ClockLine:
    """The line that keeps the greatest distance from all bounds; without drift if that does too."""
    bounds = Bounds(
        bounds.origin_ns,
        _hull(bounds.upper, turns_back=le),
        _hull(bounds.lower, turns_back=ge),
    )
    low, high = -MOST_DRIFT, MOST_DRIFT
    for _ in range(80):
        third = (high - low) / 3
        # The width of the band is concave in the drift.
        if _width(bounds, low + third) < _width(bounds, high - third):
            low += third
        else:
            high -= third
    drift = (low + high) / 2
    if _width(bounds, 0.0) >= _width(bounds, drift) / 2 > 0:
        drift = 0.0  # delays in a short run look like drift
    top = min(bound - drift * t for t, bound in bounds.upper)
    bottom = max(bound - drift * t for t, bound in bounds.lower)
    return ClockLine((top + bottom) / 2, drift, abs(top - bottom) / 2)


def _width(bounds: Bounds, drift: float) -> float:
    top = min([bound - drift * t for t, bound in bounds.upper])
    return top - max([bound - drift * t for t, bound in bounds.lower])


def _hull(
    points: Sequence[Point], *, turns_back: Callable[[float, float], bool]
) -> tuple[Point, ...]:
    """The points that can be the sharpest bound of a line: one side of the convex hull."""
    kept: list[Point] = []
    for t, bound in sorted(points):
        while len(kept) > 1:
            (t0, b0), (t1, b1) = kept[-2:]
            if not turns_back((t1 - t0) * (bound - b0), (b1 - b0) * (t - t0)):
                break
            kept.pop()
        kept.append((t, bound))
    return tuple(kept)


ExchangeStream = tuple[str | None, int, "str | int | None", "int | None"]
"""A stream of exchanges: (None, group, backend, None), or side of a message, group, peer, tag."""


def stream_of_exchanges(call: Mapping[str, Any]) -> ExchangeStream | None:
    """The stream of a call whose exchanges bound the clocks of their members; None for others."""
    group, op, backend = call.get("group"), call.get("op"), call.get("backend")
    if group is None:
        return None
    if call.get("kind") == fmt.COLLECTIVE:
        return (None, group, backend, None) if op in JOINING else None
    if call.get("kind") != fmt.MESSAGE or call.get("peer") is None:
        return None
    return (op, group, call["peer"], None if backend in fmt.ON_DEVICE else call.get("tag"))


def aligned(
    clocks: Sequence[Clock],
    processes: Sequence[Process],
    group_index: Mapping[tuple[int, int], int],
    groups: Sequence[Group],
    met: Sequence[tuple[int, int, list[list[Any]]]],
) -> tuple[Clock, ...]:
    """The clocks, set right by what processes ``met`` in: process, offset, rows of its state."""
    if not met or len({process.clock for process in processes}) < 2:
        return tuple(clocks)
    bounding = [
        group for group in groups if len({processes[m.process].clock for m in group.members}) > 1
    ]
    rank_of = {
        (group.index, member.process): member.rank for group in bounding for member in group.members
    }
    numbers = {group.index for group in bounding}
    sides: dict[tuple[object, ...], dict[int, Side]] = {}
    sent: dict[tuple[object, ...], tuple[int, int]] = {}
    received: list[tuple[tuple[object, ...], int, int]] = []
    for process, zero, rows in met:
        clock = processes[process].clock
        for side, number, of, tag, exchanges in rows:
            group = group_index.get((process, number))
            own = rank_of.get((group, process)) if group is not None else None
            for seq, begin, end in exchanges if group in numbers else ():
                begin, end = begin + zero, end + zero
                if side is None:
                    here = sides.setdefault((group, of, seq), {})
                    last, first = here.get(clock, (begin, end))
                    here[clock] = max(begin, last), min(end, first)
                elif side == "send":
                    sent[group, own, of, tag, seq] = (clock, begin)
                else:
                    received.append(((group, of, own, tag, seq), clock, end))
    ways: dict[Edge, list[tuple[int, int]]] = {}
    for key, clock, end in received:
        first = sent.get(key)
        if first is not None and first[0] != clock:
            ways.setdefault((first[0], clock), []).append((first[1], end - first[1]))
    return place(clocks, processes, [(key[:2], here) for key, here in sides.items()], ways)
