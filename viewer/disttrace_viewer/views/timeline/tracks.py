"""Where operations are drawn: on the line of their thread, or beside it, so that nothing overlaps.

What the program does not wait for in the call itself goes on while the thread does something else:
it gets a line of its own, as many per process as run at the same time.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import polars as pl

from disttrace_viewer.analysis.exchanges import Exchanges
from disttrace_viewer.analysis.wait_states import WaitStates
from disttrace_viewer.trace.model import JobTrace
from disttrace_viewer.trace.values import dataclass, field

FOREVER = 1 << 63


class Track(NamedTuple):
    """A line of a process: ``thread`` is its thread's number; None: ``lane`` for what runs
    beside."""

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
    """When an operation was over; what is in flight was so at least up to the last sign of life."""
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
