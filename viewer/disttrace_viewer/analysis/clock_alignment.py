"""Clocks of several hosts brought together by what cannot be: nothing is received before it was
sent, and nobody leaves a collective before the last one came.

Each exchange between two hosts bounds the difference of their clocks from above or from below. The
line of offset and drift that keeps the greatest distance from all bounds is taken (the feasible
band of Duda et al., "Estimating Global Time in Distributed Systems", 1987); half of that distance
is the error.

Clocks form a tree, outwards from that of most processes: the members of the largest group that
has a placed clock are placed by it. So the work grows with the hosts in each exchange, and not
with pairs of them.
"""

from __future__ import annotations

import dataclasses
import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from operator import ge, le

import polars as pl

from disttrace_viewer.analysis.exchanges import Exchanges
from disttrace_viewer.merge.clock import realign
from disttrace_viewer.trace.model import Clock, Trace
from disttrace_viewer.trace.operation import SYNCHRONIZING

JOINING = (*SYNCHRONIZING, "monitored_barrier")
"""Collectives that nobody leaves before everybody came."""
MOST_DRIFT = 5e-4
"""Crystals are off by less."""
BINS = 200
UNMET_NS = 50_000_000
"""How far wall clocks of hosts may be apart that never exchanged anything."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """What exchanges say of ``clock - reference`` at some times (ns after ``origin_ns``)."""

    origin_ns: int
    upper: tuple[tuple[float, float], ...]
    """(time, bound)."""
    lower: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class Line:
    """``offset_ns + drift * t``, and how far it may be off."""

    offset_ns: float
    drift: float
    error_ns: float


Point = tuple[float, float]
"""(time, bound)."""
Tree = Sequence[tuple[int, int]]
"""(placed clock, clock that is placed by it), outwards."""


def align(trace: Trace) -> Trace:
    """The trace on one time line; unchanged where all processes share one clock."""
    used = sorted({p.clock for p in trace.processes})
    if len(used) < 2:
        return trace
    root = _reference(trace)
    sides = _sides_of_collectives(trace)
    messages = _messages(trace)
    joined = _joined(sides, messages)
    clocks = list(trace.clocks)
    placed: set[int] = set()
    rejected: set[tuple[int, int]] = set()
    while True:
        edges = _tree(root, joined, rejected)
        bounds = _bounds(edges, sides, messages)
        unmet = {edge for edge in edges if edge not in bounds}
        if not unmet - rejected:
            break
        rejected |= unmet  # they met one way only, or in nothing that was over for both
    for reference, clock in edges:
        found = fit(bounds[reference, clock])
        clocks[clock] = _shifted(trace, clocks, reference, clock, bounds[reference, clock], found)
        placed.add(clock)
    for clock in set(used) - placed - {root}:
        error = max(clocks[clock].error_ns, UNMET_NS)
        clocks[clock] = dataclasses.replace(clocks[clock], error_ns=error)
    return realign(trace, tuple(clocks))


def _reference(trace: Trace) -> int:
    """The clock that most processes go by; of equals, that of the lowest rank."""
    count: dict[int, int] = {}
    least: dict[int, int] = {}
    for process in trace.processes:
        clock = process.clock
        count[clock] = count.get(clock, 0) + 1
        rank = 1 << 30 if process.rank is None else process.rank
        least[clock] = min(rank, least.get(clock, rank))
    return max(sorted(count), key=lambda clock: (count[clock], -least[clock]))


def _tree(
    root: int, joined: Iterable[AbstractSet[int]], rejected: AbstractSet[tuple[int, int]]
) -> list[tuple[int, int]]:
    """A tree over clocks that met, from ``root``: the largest of the sets within reach first."""
    sets = [sorted(clocks) for clocks in joined]
    of_clock: dict[int, list[int]] = {}
    for number, clocks in enumerate(sets):
        for clock in clocks:
            of_clock.setdefault(clock, []).append(number)
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


def _shifted(
    trace: Trace, clocks: Sequence[Clock], reference: int, clock: int, bounds: Bounds, line: Line
) -> Clock:
    """A clock set right by its line against a reference, which may have been set right itself."""
    old, above, moved = trace.clocks[clock], clocks[reference], trace.clocks[reference]
    # Where the reference was moved, its own line comes on top.
    origin = bounds.origin_ns - old.offset_ns
    there = bounds.origin_ns - moved.offset_ns - above.origin_ns
    shift = above.offset_ns - moved.offset_ns - round(there * above.drift)
    return dataclasses.replace(
        old,
        offset_ns=old.offset_ns - round(line.offset_ns) + shift,
        drift=line.drift + above.drift,
        origin_ns=origin,
        error_ns=round(line.error_ns) + (above.error_ns if shift else 0),
    )


def fit(bounds: Bounds) -> Line:
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
    if _width(bounds, 0.0) >= 0.9 * _width(bounds, drift) > 0:
        drift = 0.0
    top = min(bound - drift * t for t, bound in bounds.upper)
    bottom = max(bound - drift * t for t, bound in bounds.lower)
    return Line((top + bottom) / 2, drift, abs(top - bottom) / 2)


def _width(bounds: Bounds, drift: float) -> float:
    top = min(bound - drift * t for t, bound in bounds.upper)
    return top - max(bound - drift * t for t, bound in bounds.lower)


def _hull(
    points: Sequence[tuple[float, float]], *, turns_back: Callable[[float, float], bool]
) -> tuple[tuple[float, float], ...]:
    """The points that can be the sharpest bound of a line: one side of the convex hull."""
    kept: list[tuple[float, float]] = []
    for t, bound in sorted(points):
        while len(kept) > 1:
            (t0, b0), (t1, b1) = kept[-2:]
            if not turns_back((t1 - t0) * (bound - b0), (b1 - b0) * (t - t0)):
                break
            kept.pop()
        kept.append((t, bound))
    return tuple(kept)


def _bounds(
    edges: Tree, sides: pl.LazyFrame, messages: pl.DataFrame
) -> Mapping[tuple[int, int], Bounds]:
    """Bounds of the edges whose clocks exchanged both ways."""
    if not edges:
        return {}
    tree = pl.LazyFrame(
        {"above": [a for a, _ in edges], "clock": [c for _, c in edges]},
        schema={"above": pl.Int64, "clock": pl.Int64},
    )
    # Something of ``first`` happened before something of ``second``: first <= second.
    pairs = (
        sides.join(tree, on="clock")
        .join(sides, left_on=["exchange", "above"], right_on=["exchange", "clock"], suffix="_above")
        .collect()
        .lazy()
    )
    begin, end = pl.col("begin"), pl.col("end")
    begin_above, end_above = pl.col("begin_above"), pl.col("end_above")
    down = pairs.select("above", "clock", t=begin_above, bound=end - begin_above, upper=True)
    up = pairs.select("above", "clock", t=begin, bound=begin - end_above, upper=False)
    sent = messages.lazy().select("first", "second", t="begin", bound=end - begin)
    sent_down = sent.rename({"first": "above", "second": "clock"}).join(
        tree, on=["above", "clock"], how="semi"
    )
    sent_up = sent.rename({"first": "clock", "second": "above"}).join(
        tree, on=["above", "clock"], how="semi"
    )
    columns = ("above", "clock", "t", "bound", "upper")
    rows = pl.concat(
        [
            down.select(columns),
            up.select(columns),
            sent_down.with_columns(upper=True).select(columns),
            sent_up.with_columns(bound=-pl.col("bound"), upper=False).select(columns),
        ]
    ).drop_nulls()
    return _binned(rows.collect())


def _binned(rows: pl.DataFrame) -> Mapping[tuple[int, int], Bounds]:
    """The sharpest bounds of each of some equal spans of time, by edge."""
    if not rows.height:
        return {}
    origin, last = rows["t"].min(), rows["t"].max()
    assert isinstance(origin, int)
    assert isinstance(last, int)
    width = max(1, (last - origin) // BINS)
    bound = pl.col("bound")
    sharp = pl.when(pl.col("upper").first()).then(bound.arg_min()).otherwise(bound.arg_max())
    kept = (
        rows.lazy()
        .with_columns(((pl.col("t") - origin) // width).alias("bin"))
        .group_by("above", "clock", "upper", "bin")
        .agg(pl.col("t").get(sharp), bound.get(sharp))
        .sort("t")
        .collect()
    )
    found: dict[tuple[int, int], tuple[list[Point], list[Point]]] = {}
    for above, clock, upper, t, value in kept.drop("bin").iter_rows():
        points = found.setdefault((above, clock), ([], []))[0 if upper else 1]
        points.append((float(t - origin), float(value)))
    return {
        edge: Bounds(origin, tuple(upper), tuple(lower))
        for edge, (upper, lower) in found.items()
        if upper and lower
    }


def _joined(sides: pl.LazyFrame, messages: pl.DataFrame) -> list[AbstractSet[int]]:
    """Sets of clocks that bound one another: of the members of each group, and of messages that
    went both ways.
    """
    groups = (
        sides.filter(pl.col("end").is_not_null())
        .group_by("stream")
        .agg(pl.col("clock").unique().sort())
        .filter(pl.col("clock").list.len() > 1)
        .sort("stream")
        .collect()
    )
    found: dict[frozenset[int], None] = {}
    found.update((frozenset(clocks), None) for clocks in groups["clock"].to_list())
    ways = set(messages.select("first", "second").unique().iter_rows())
    found.update((frozenset(way), None) for way in sorted(ways) if way[::-1] in ways)
    return list(found)


def _clock_of(trace: Trace) -> pl.LazyFrame:
    clocks = [p.clock for p in trace.processes]
    return pl.LazyFrame(
        {"process": range(len(clocks)), "clock": clocks},
        schema={"process": pl.UInt32, "clock": pl.Int64},
    )


def _sides_of_collectives(trace: Trace) -> pl.LazyFrame:
    """Per exchange and clock the last ``begin`` and the first ``end`` of those that nobody leaves
    before everybody came; ``stream`` numbers their groups and backends.
    """
    calls = (
        trace.calls.lazy().with_row_index("call").filter(pl.col("op").is_in(JOINING)).select("call")
    )
    found = (
        Exchanges(trace)
        .collective_operations()
        .rename({"_exchange": "exchange", "_stream": "stream"})
        .join(calls, on="call", how="semi")
        .join(_clock_of(trace), on="process")
        .group_by("exchange", "clock")
        .agg(
            pl.col("stream").first(),
            pl.col("begin_ns").max().alias("begin"),
            pl.col("end_ns").filter(pl.col("error").is_null()).min().alias("end"),
        )
    )
    return found.collect().lazy()


def _messages(trace: Trace) -> pl.DataFrame:
    """Messages between clocks: a send (``begin``) began before its receive ended (``end``)."""
    clocks = _clock_of(trace)
    return (
        Exchanges(trace)
        .messages.lazy()
        .filter(pl.col("recv_end_ns").is_not_null() & pl.col("recv_error").is_null())
        .join(clocks.rename({"process": "send_process", "clock": "first"}), on="send_process")
        .join(clocks.rename({"process": "recv_process", "clock": "second"}), on="recv_process")
        .filter(pl.col("first") != pl.col("second"))
        .select("first", "second", begin="send_begin_ns", end="recv_end_ns")
        .collect()
    )
