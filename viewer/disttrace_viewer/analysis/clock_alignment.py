"""Clocks of several hosts brought together by what cannot be: nothing is received before it was
sent, and nobody leaves a collective before the last one came.

Each exchange between two hosts bounds the difference of their clocks from above or from below. The
line of offset and drift that keeps the greatest distance from all bounds is taken (the feasible
band of Duda et al., "Estimating Global Time in Distributed Systems", 1987); half of that distance
is the error.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import polars as pl

from disttrace_viewer.analysis.exchanges import Exchanges
from disttrace_viewer.merge.clock import realign
from disttrace_viewer.trace.model import Clock, Trace

JOINING = (
    "all_reduce",
    "all_reduce_coalesced",
    "all_gather",
    "all_gather_coalesced",
    "all_gather_into_tensor",
    "all_gather_into_tensor_coalesced",
    "reduce_scatter",
    "reduce_scatter_tensor",
    "reduce_scatter_tensor_coalesced",
    "all_to_all",
    "all_to_all_single",
    "barrier",
    "monitored_barrier",
)
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


def align(trace: Trace) -> Trace:
    """The trace on one time line; unchanged where all processes share one clock."""
    used = sorted({p.clock for p in trace.processes})
    if len(used) < 2:
        return trace
    bounds = dict(_bounds(trace))
    clocks = list(trace.clocks)
    placed = [max(used, key=lambda clock: _weight(trace, clock))]
    # Outwards from the clock of most processes: each clock by one that is placed already.
    left = [c for c in used if c not in placed]
    while left:
        pair = next(((r, c) for r in placed for c in left if (r, c) in bounds), None)
        if pair is None:
            break
        reference, clock = pair
        found = fit(bounds[pair])
        clocks[clock] = _shifted(clocks[clock], bounds[pair], found, clocks[reference], trace)
        placed.append(clock)
        left.remove(clock)
    for clock in left:
        error = max(clocks[clock].error_ns, UNMET_NS)
        clocks[clock] = dataclasses.replace(clocks[clock], error_ns=error)
    return realign(trace, tuple(clocks))


def _weight(trace: Trace, clock: int) -> tuple[int, int]:
    """How many processes go by a clock; of equals, that of the lowest rank is the reference."""
    ranks = [p.rank for p in trace.processes if p.clock == clock]
    return len(ranks), -min((r for r in ranks if r is not None), default=1 << 30)


def _shifted(clock: Clock, bounds: Bounds, line: Line, reference: Clock, trace: Trace) -> Clock:
    """A clock set right by its line against a reference, which may have been set right itself."""
    old = trace.clocks[trace.clocks.index(clock)]
    moved = next(c for c in trace.clocks if c.boot_id == reference.boot_id)
    # Where the reference was moved, its own line comes on top.
    origin = bounds.origin_ns - old.offset_ns
    there = bounds.origin_ns - moved.offset_ns - reference.origin_ns
    shift = reference.offset_ns - moved.offset_ns - round(there * reference.drift)
    return dataclasses.replace(
        old,
        offset_ns=old.offset_ns - round(line.offset_ns) + shift,
        drift=line.drift + reference.drift,
        origin_ns=origin,
        error_ns=round(line.error_ns) + (reference.error_ns if shift else 0),
    )


def fit(bounds: Bounds) -> Line:
    """The line that keeps the greatest distance from all bounds; without drift if that does too."""
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


def _bounds(trace: Trace) -> Iterator[tuple[tuple[int, int], Bounds]]:
    """Bounds of every ordered pair of clocks (reference, clock) that exchanged both ways."""
    meets = pl.concat([_of_collectives(trace), *_of_messages(trace)])
    if not meets.height:
        return
    origin = meets["t"].min()
    assert isinstance(origin, int)
    for (first, second), rows in meets.group_by(["first", "second"], maintain_order=True):
        # Something of ``first`` happened before something of ``second``: first <= second.
        back = meets.filter((pl.col("first") == second) & (pl.col("second") == first))
        if not back.height:
            continue
        reference, clock = int(str(first)), int(str(second))
        upper = _binned(rows.select("t", bound="slack"), origin, least=True)
        lower = _binned(back.select("t", bound=-pl.col("slack")), origin, least=False)
        yield (reference, clock), Bounds(origin, upper, lower)


def _binned(rows: pl.DataFrame, origin: int, *, least: bool) -> tuple[tuple[float, float], ...]:
    """The sharpest bound of each of some equal spans of time."""
    last = rows["t"].max()
    width = max(1, (int(last) - origin) // BINS if isinstance(last, int) else 1)
    bound = pl.col("bound")
    sharp = bound.arg_min() if least else bound.arg_max()
    kept = (
        rows.with_columns(((pl.col("t") - origin) // width).alias("bin"))
        .group_by("bin")
        .agg(pl.col("t").get(sharp), bound.get(sharp))
        .sort("t")
    )
    return tuple((float(t - origin), float(b)) for t, b in kept.select("t", "bound").iter_rows())


def _clock_of(trace: Trace) -> pl.LazyFrame:
    clocks = [p.clock for p in trace.processes]
    return pl.LazyFrame(
        {"process": range(len(clocks)), "clock": clocks},
        schema={"process": pl.UInt32, "clock": pl.Int64},
    )


def _of_collectives(trace: Trace) -> pl.DataFrame:
    """``first`` began before ``second`` ended: the last begin there, the first end here."""
    calls = (
        trace.calls.lazy().with_row_index("call").filter(pl.col("op").is_in(JOINING)).select("call")
    )
    sides = (
        Exchanges(trace)
        .participants()
        .lazy()
        .join(calls, on="call", how="semi")
        .join(_clock_of(trace), on="process")
        .group_by("exchange", "clock")
        .agg(
            pl.col("begin_ns").max().alias("begin"),
            pl.col("end_ns").filter(pl.col("error").is_null()).min().alias("end"),
        )
    )
    return (
        sides.join(sides, on="exchange", suffix="_other")
        .filter((pl.col("clock") != pl.col("clock_other")) & pl.col("end_other").is_not_null())
        .select(
            first="clock",
            second="clock_other",
            t="begin",
            slack=pl.col("end_other") - pl.col("begin"),
        )
        .collect()
    )


def _of_messages(trace: Trace) -> Sequence[pl.DataFrame]:
    """A send began before its receive ended."""
    clocks = _clock_of(trace)
    found = (
        Exchanges(trace)
        .messages.lazy()
        .filter(pl.col("recv_end_ns").is_not_null() & pl.col("recv_error").is_null())
        .join(clocks.rename({"process": "send_process", "clock": "first"}), on="send_process")
        .join(clocks.rename({"process": "recv_process", "clock": "second"}), on="recv_process")
        .filter(pl.col("first") != pl.col("second"))
        .select(
            "first",
            "second",
            t="send_begin_ns",
            slack=pl.col("recv_end_ns") - pl.col("send_begin_ns"),
        )
        .collect()
    )
    return [found]
