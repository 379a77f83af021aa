"""Counters per group: how many ranks wait in it, how many bytes are in flight, how fast it is.

A hang is then a plateau in one line, whatever the number of ranks.
"""

from __future__ import annotations

import polars as pl

from disttrace_viewer.analysis.exchanges import Exchanges
from disttrace_viewer.trace.bandwidth import BUS
from disttrace_viewer.trace.model import Call, Trace
from disttrace_viewer.views.timeline.tracks import waits

WAITING, FLYING, BUSY = "ranks waiting", "bytes in flight", "busbw, GB/s"
POINTS = 1000
"""Of a series: of more steps the largest value of each slice of time is kept."""
ALL_POINTS = 100_000
"""Of all series together, but for 16 of each."""

SERIES: dict[str, pl.DataType] = {
    "group": pl.UInt32(),
    "what": pl.String(),
    "at_ns": pl.Int64(),
    "value": pl.Float64(),
}


def counters(trace: Trace, exchanges: Exchanges) -> pl.DataFrame:
    """Steps of the counters of every group that communicates, by group, counter and time.

    Each step holds until the next one. What is in flight counts until the last sign of life of its
    process. Bus bandwidth is that of the last collective, from its last arrival to its end.
    """
    rows = _operations(trace, exchanges)
    one = pl.lit(1.0)
    waiting = rows.filter(pl.col("until_ns") > pl.col("begin_ns"))
    found = pl.concat(
        [
            _level(waiting, WAITING, one, "until_ns"),
            _level(rows.filter(pl.col("bytes") > 0), FLYING, pl.col("bytes"), "over_ns"),
            _bandwidth(trace, exchanges),
        ]
    )
    return _thinned(found.cast(SERIES).sort("group", "what", "at_ns"))  # type: ignore[arg-type]


def _operations(trace: Trace, exchanges: Exchanges) -> pl.DataFrame:
    """Operations in groups: ``group begin_ns until_ns over_ns bytes``."""
    calls = trace.calls.with_row_index("call").filter(
        pl.col("kind").is_in(["collective", "message"]) & pl.col("group").is_not_null()
    )
    lasts = {process.index: process.last_ns for process in trace.processes}
    last = pl.col("process").replace_strict(lasts, default=None, return_dtype=pl.Int64)
    begin = pl.col("begin_ns")
    found = (
        trace.operations.join(
            calls.select("call", "group", pl.col("bytes").alias("_bytes")), on="call"
        )
        .join(waits(exchanges).with_columns(waits=True), on=["process", "number"], how="left")
        .with_columns(
            over_ns=pl.max_horizontal(
                begin,
                pl.coalesce("end_ns", pl.when(pl.col("error").is_null()).then(last)),
            ),
            bytes=pl.coalesce("bytes", "_bytes"),
        )
    )
    until = pl.min_horizontal(pl.coalesce("until_ns", "over_ns"), "over_ns")
    return found.select(
        "group", "begin_ns", pl.when("waits").then(until).alias("until_ns"), "over_ns", "bytes"
    )


def _level(rows: pl.DataFrame, what: str, step: pl.Expr, end: str) -> pl.DataFrame:
    """How much is going on at a time: up at every begin, down at every end."""
    both = [
        rows.select("group", pl.col(column).alias("at_ns"), (step * sign).alias("step"))
        for column, sign in (("begin_ns", 1.0), (end, -1.0))
    ]
    return (
        pl.concat([part.cast({"step": pl.Float64}) for part in both])
        .group_by("group", "at_ns")
        .agg(pl.col("step").sum())
        .sort("group", "at_ns")
        .select(
            "group",
            pl.lit(what).alias("what"),
            "at_ns",
            pl.col("step").cum_sum().over("group").alias("value"),
        )
    )


def _bandwidth(trace: Trace, exchanges: Exchanges) -> pl.DataFrame:
    """Up at the last arrival, down when all are over."""
    factors = {
        call.index: bus
        for call in map(trace.call, exchanges.collectives["call"].unique().to_list())
        if call.bytes and (bus := on_bus(trace, call, call.bytes)) is not None
    }
    over = exchanges.collectives.filter(
        (pl.col("ended") >= pl.col("expected"))
        & (pl.col("end_ns") > pl.col("last_ns"))
        & pl.col("call").is_in(list(factors))
    )
    moved = pl.col("call").replace_strict(factors, default=None, return_dtype=pl.Float64)
    # Bytes by nanoseconds are gigabytes by seconds.
    rate = moved / (pl.col("end_ns") - pl.col("last_ns"))
    both = [
        over.select("group", pl.col("last_ns").alias("at_ns"), rate.alias("value")),
        over.select("group", pl.col("end_ns").alias("at_ns"), pl.lit(0.0).alias("value")),
    ]
    # One that begins when another ends is what is seen.
    return (
        pl.concat(both)
        .group_by("group", "at_ns")
        .agg(pl.col("value").max())
        .select("group", pl.lit(BUSY).alias("what"), "at_ns", "value")
    )


def on_bus(trace: Trace, call: Call, size: int) -> float | None:
    """Bytes on the bus of a collective by one of its calls, with ``size`` bytes; None where no bus
    bandwidth is defined.
    """
    shape = BUS.get(call.op)
    members = None if call.group is None else trace.groups[call.group].size
    if shape is None or members is None or members < 2:
        return None
    total, factor = shape(size, members, call.root is not None and call.root == call.group_rank)
    return total * factor


def _thinned(rows: pl.DataFrame) -> pl.DataFrame:
    """At most ``POINTS`` of a series: the largest in each slice of time, and the last of all."""
    series = ["group", "what"]
    most = max(16, min(POINTS, ALL_POINTS // max(1, rows.select(series).n_unique())))
    first, last = pl.col("at_ns").min().over(series), pl.col("at_ns").max().over(series)
    width = pl.max_horizontal((last - first) // (most - 1) + 1, pl.lit(1))
    final = pl.col("_slice") == pl.col("_slice").max().over(series)
    kept = (
        rows.with_columns(
            _slice=pl.when(pl.len().over(series) > most)
            .then((pl.col("at_ns") - first) // width)
            .otherwise(pl.int_range(pl.len()).over(series)),
        )
        .group_by(*series, "_slice", maintain_order=True)
        .agg(pl.col("at_ns").first(), pl.col("value").max(), pl.col("value").last().alias("_end"))
        .with_columns(value=pl.when(final).then("_end").otherwise("value"))
    )
    same = pl.col("value") == pl.col("value").shift(1).over(series)
    return kept.filter(~same.fill_null(value=False)).select(*SERIES)
