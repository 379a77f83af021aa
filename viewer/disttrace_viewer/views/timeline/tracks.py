"""Where operations are drawn: on the line of their thread, or beside it, so that nothing overlaps.

On a line, operations are apart or one is inside the other. What the program does not wait for in
the call itself goes on while the thread does something else: it gets a line of its own, as many
per process as run at the same time.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import polars as pl

from disttrace_viewer.analysis.exchanges import Exchanges
from disttrace_viewer.analysis.wait_states import WaitStates
from disttrace_viewer.trace import operation
from disttrace_viewer.trace.model import Call, JobTrace
from disttrace_viewer.trace.values import dataclass, field
from disttrace_viewer.views import tables

FOREVER = 1 << 63


class Track(NamedTuple):
    """A line of a process: ``thread`` is its thread's number; None: ``lane`` for what runs beside
    the threads, from 1.
    """

    process: int
    thread: int | None
    lane: int = 0


@dataclass(slots=True)
class Tracks:
    """The tracks met so far with their numbers, in order, and what is open on each."""

    known: dict[Track, int] = field(default_factory=dict)
    _open: dict[int, list[int]] = field(default_factory=dict)  # ends, outermost first

    def place(self, process: int, thread: int, begin: int, end: int | None, beside: bool) -> int:
        """The track for the next operation; operations come in the order of their begins."""
        over = FOREVER if end is None else end
        track = Track(process, None, 1) if beside else Track(process, thread)
        while True:
            number = self.known.setdefault(track, len(self.known))
            if self._fits(number, begin, over, inside=track.thread is not None):
                return number
            track = Track(process, None, track.lane + 1)

    def _fits(self, number: int, begin: int, end: int, *, inside: bool) -> bool:
        stack = self._open.setdefault(number, [])
        while stack and stack[-1] <= begin:
            stack.pop()
        if stack and (not inside or end > stack[-1]):
            return False
        stack.append(end)
        return True


BESIDE: pl.Expr = (
    pl.when(pl.col("async").is_not_null())
    .then("async")
    .otherwise(
        # Where it is not known: the call returned before the operation was over.
        pl.col("issued_ns").is_not_null()
        & (pl.col("end_ns").is_null() | (pl.col("end_ns") > pl.col("issued_ns")))
    )
)
"""Whether an operation goes on beside its thread (``async`` is the call's)."""


def placed(trace: JobTrace, tracks: Tracks, operations: pl.DataFrame) -> pl.DataFrame:
    """Rows of the operations table, by begin, with ``track``: a number of ``tracks``."""
    calls = trace.calls.select("async").with_row_index("call")
    rows = operations.join(calls, on="call", how="left", maintain_order="left")
    columns: Iterable[tuple[int, int, int, int | None, bool]] = rows.select(
        "process", "thread", "begin_ns", "end_ns", BESIDE
    ).iter_rows()
    numbers = [tracks.place(*row) for row in columns]
    return operations.with_columns(pl.Series("track", numbers, dtype=pl.UInt32))


def until(trace: JobTrace) -> pl.Expr:
    """When an operation was over, as far as is known: what is in flight was so at least up to the
    last sign of life of its process.
    """
    lasts = {process.index: process.last_ns for process in trace.processes}
    last = pl.col("process").replace_strict(lasts, default=None, return_dtype=pl.Int64)
    failed = pl.coalesce("issued_ns", "begin_ns")
    known = pl.coalesce("end_ns", pl.when(pl.col("error").is_null()).then(last).otherwise(failed))
    return pl.max_horizontal("begin_ns", known)


WAITS: dict[str, pl.DataType] = {
    "process": pl.UInt32(),
    "number": pl.UInt32(),
    "until_ns": pl.Int64(),  # when waiting was over; null: it is not, as far as is known
    "for_process": pl.UInt32(),  # who was waited for; null: not known, or several
}


def waits(states: WaitStates) -> pl.DataFrame:
    """One row per operation that waited: in a collective, for a message, for a key of a store."""
    parts = _partners(states), _keys(states.exchanges)
    found = pl.concat([part.cast(WAITS) for part in parts])  # type: ignore[arg-type]
    return found.unique(["process", "number"], keep="first", maintain_order=True)


def _partners(states: WaitStates) -> pl.DataFrame:
    """As ``stats`` counts them; in what never completed for the one culprit of its finding."""
    single = [(waiter, who[0]) for waiter, who in states.blame.of.items() if len(who) == 1]
    culprits = pl.DataFrame(single, {"process": pl.UInt32, "culprit": pl.UInt32}, orient="row")
    open_ = pl.col("in_flight") & pl.col("never")
    return (
        states.parts.filter(pl.col("until_ns").is_not_null())
        .join(culprits, on="process", how="left", maintain_order="left")
        .select(
            "process",
            "number",
            pl.when(~open_).then("until_ns").alias("until_ns"),
            pl.when(open_).then("culprit").otherwise("by").alias("for_process"),
        )
    )


def _keys(exchanges: Exchanges) -> pl.DataFrame:
    known = exchanges.keys.select("place", "key", "first_set_ns", "setter")
    rows = (
        exchanges.key_events.filter(pl.col("part") == "wait")
        .join(known, on=["place", "key"], how="left", maintain_order="left")
        .filter(pl.col("first_set_ns").is_null() | (pl.col("first_set_ns") > pl.col("begin_ns")))
    )
    return rows.select(
        "process",
        "number",
        pl.col("first_set_ns").alias("until_ns"),
        pl.col("setter").alias("for_process"),
    )


WAITING, FLYING, BUSY = "ranks waiting", "bytes in flight", "busbw, GB/s"
POINTS = 1000
"""Of a series: of more steps the largest value of some neighbouring ones is kept."""
ALL_POINTS = 100_000
"""Of all series together, but for 16 of each."""

SERIES: dict[str, pl.DataType] = {
    "group": pl.UInt32(),
    "what": pl.String(),
    "at_ns": pl.Int64(),
    "value": pl.Float64(),
}


def counters(trace: JobTrace, exchanges: Exchanges) -> pl.DataFrame:
    """Steps of the counters of every group that communicates, by group, counter and time.

    Each step holds until the next one. What is in flight counts until the last sign of life of its
    process. Bus bandwidth is that of the last collective, from its last arrival to its end.
    """
    states = WaitStates(exchanges)
    rows = _operations(trace, states)
    one = pl.lit(1.0)
    waiting = rows.filter(pl.col("until_ns") > pl.col("begin_ns"))
    found = pl.concat(
        [
            _level(waiting, WAITING, one, "until_ns"),
            _level(rows.filter(pl.col("bytes") > 0), FLYING, pl.col("bytes"), "over_ns"),
            _bandwidth(states),
        ]
    )
    return _thinned(found.cast(SERIES).sort("group", "what", "at_ns"))  # type: ignore[arg-type]


def _operations(trace: JobTrace, states: WaitStates) -> pl.DataFrame:
    """Operations in groups: ``group begin_ns until_ns over_ns bytes``."""
    calls = trace.calls.with_row_index("call").filter(
        pl.col("kind").is_in(["collective", "message"]) & pl.col("group").is_not_null()
    )
    found = (
        trace.operations.join(
            calls.select("call", "group", pl.col("bytes").alias("_bytes")), on="call"
        )
        .join(waits(states).with_columns(waits=True), on=["process", "number"], how="left")
        .with_columns(over_ns=until(trace), bytes=pl.coalesce("bytes", "_bytes"))
    )
    waited = pl.min_horizontal(pl.coalesce("until_ns", "over_ns"), "over_ns")
    return found.select(
        "group", "begin_ns", pl.when("waits").then(waited).alias("until_ns"), "over_ns", "bytes"
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


def _bandwidth(waits: WaitStates) -> pl.DataFrame:
    """Up at the last arrival, down when all are over."""
    over = tables.collectives(waits).with_columns(waits.exchanges.collectives["group"])
    over = over.drop_nulls("busbw")
    both = [
        over.select("group", at_ns="last_ns", value=pl.col("busbw") / 1e9),
        over.select("group", at_ns="end_ns", value=pl.lit(0.0)),
    ]
    # One that begins when another ends is what is seen.
    return (
        pl.concat(both)
        .group_by("group", "at_ns")
        .agg(pl.col("value").max())
        .select("group", pl.lit(BUSY).alias("what"), "at_ns", "value")
    )


def on_bus(trace: JobTrace, call: Call, size: int) -> float | None:
    """Bytes on the bus of a collective by one of its calls, with ``size`` bytes; None where no bus
    bandwidth is defined.
    """
    members = None if call.group is None else trace.groups[call.group].size
    root = call.root is not None and call.root == call.group_rank
    shape = operation.on_bus(call.op, members, root=root)
    return None if shape is None else size * shape[0] * shape[1]


def _thinned(rows: pl.DataFrame) -> pl.DataFrame:
    """At most ``POINTS`` of a series: the largest of neighbouring ones, and the last of all."""
    series = ["group", "what"]
    most = max(16, min(POINTS, ALL_POINTS // max(1, rows.select(series).n_unique())))
    final = pl.col("_slice") == pl.col("_slice").max().over(series)
    nth, count = pl.int_range(pl.len()).over(series), pl.len().over(series)
    kept = (
        rows.with_columns(_slice=nth * most // pl.max_horizontal(count, most))
        .group_by(*series, "_slice", maintain_order=True)
        .agg(pl.col("at_ns").first(), pl.col("value").max(), pl.col("value").last().alias("_end"))
        .with_columns(value=pl.when(final).then("_end").otherwise("value"))
    )
    same = pl.col("value") == pl.col("value").shift(1).over(series)
    return kept.filter(~same.fill_null(value=False)).select(*SERIES)
