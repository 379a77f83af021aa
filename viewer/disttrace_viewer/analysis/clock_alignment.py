"""The clocks of a trace brought together by all of its exchanges, in columns."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet

import polars as pl

from disttrace_viewer.analysis.exchanges import Exchanges
from disttrace_viewer.merge.clock import JOINING, Bounds, Point, Tree, place, realign
from disttrace_viewer.trace.model import Trace

BINS = 200


def align(trace: Trace) -> Trace:
    """The trace on one time line; unchanged where all processes share one clock."""
    if len({p.clock for p in trace.processes}) < 2:
        return trace
    sides = _sides_of_collectives(trace)
    messages = _messages(trace)
    joined = _joined(sides, messages)
    clocks = place(
        trace.clocks, trace.processes, joined, lambda tree: _bounds(tree, sides, messages)
    )
    return realign(trace, clocks)


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
    down = pairs.select("above", "clock", t=end, bound=end - begin_above, upper=True)
    up = pairs.select("above", "clock", t=begin, bound=begin - end_above, upper=False)
    sent = messages.lazy().select("first", "second", "begin", "end", bound=end - begin)
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
            sent_down.with_columns(t="end", upper=True).select(columns),
            sent_up.with_columns(t="begin", bound=-pl.col("bound"), upper=False).select(columns),
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
