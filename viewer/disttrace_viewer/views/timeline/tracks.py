"""Where operations are drawn: on the line of their thread, or beside it, so that nothing overlaps.

On a line, operations are apart or one is inside the other. What the program does not wait for in
the call itself goes on while the thread does something else: it gets a line of its own, as many
per process as run at the same time.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import polars as pl

from disttrace_viewer.analysis.exchanges import Exchanges
from disttrace_viewer.analysis.wait_states import WaitStates
from disttrace_viewer.trace.model import Trace

FOREVER = 1 << 63


@dataclass(frozen=True, slots=True)
class Track:
    """A line of a process: ``thread`` is its thread's number; None: ``lane`` for what runs beside
    the threads, from 1.
    """

    process: int
    thread: int | None
    lane: int = 0


@dataclass(slots=True)
class Tracks:
    """The tracks met so far, by number, and what is open on each."""

    known: list[Track] = field(default_factory=list)
    _numbers: dict[Track, int] = field(default_factory=dict)
    _open: list[list[int]] = field(default_factory=list)  # ends, outermost first

    def number(self, track: Track) -> int:
        """The number of a track, new or known."""
        found = self._numbers.get(track)
        if found is None:
            found = self._numbers[track] = len(self.known)
            self.known.append(track)
            self._open.append([])
        return found

    def place(self, process: int, thread: int, begin: int, end: int | None, beside: bool) -> int:
        """The track for the next operation; operations come in the order of their begins."""
        over = FOREVER if end is None else end
        if not beside:
            own = self.number(Track(process, thread))
            if self._fits(own, begin, over, inside=True):
                return own
        lane = 1
        while True:
            other = self.number(Track(process, None, lane))
            if self._fits(other, begin, over, inside=False):
                return other
            lane += 1

    def _fits(self, number: int, begin: int, end: int, *, inside: bool) -> bool:
        stack = self._open[number]
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
        # Where nobody knows: the call returned before the operation was over.
        pl.col("issued_ns").is_not_null()
        & (pl.col("end_ns").is_null() | (pl.col("end_ns") > pl.col("issued_ns")))
    )
)
"""Whether an operation goes on beside its thread (``async`` is the call's)."""


def placed(trace: Trace, tracks: Tracks, operations: pl.DataFrame) -> pl.DataFrame:
    """Rows of the operations table, by begin, with ``track``: a number of ``tracks``."""
    calls = trace.calls.select("async").with_row_index("call")
    rows = operations.join(calls, on="call", how="left", maintain_order="left")
    columns: Iterable[tuple[int, int, int, int | None, bool]] = rows.select(
        "process", "thread", "begin_ns", "end_ns", BESIDE
    ).iter_rows()
    numbers = [tracks.place(*row) for row in columns]
    return operations.with_columns(pl.Series("track", numbers, dtype=pl.UInt32))


WAITS: dict[str, pl.DataType] = {
    "process": pl.UInt32(),
    "number": pl.UInt32(),
    "until_ns": pl.Int64(),  # when waiting was over; null: it is not, as far as is known
    "for_process": pl.UInt32(),  # who was waited for; null: not known, or several
}


def waits(exchanges: Exchanges) -> pl.DataFrame:
    """One row per operation that waited: in a collective, for a message, for a key of a store."""
    parts = _partners(exchanges), _keys(exchanges)
    found = pl.concat([part.cast(WAITS) for part in parts])  # type: ignore[arg-type]
    return found.unique(["process", "number"], keep="first", maintain_order=True)


def _partners(exchanges: Exchanges) -> pl.DataFrame:
    """As ``stats`` counts them; where one process alone has not begun, it is the one waited for."""
    missing = pl.concat([_only_missing(exchanges), _other_ends(exchanges)])
    open_ = pl.col("in_flight") & pl.col("never")
    return (
        WaitStates(exchanges)
        .parts.filter(pl.col("until_ns").is_not_null())
        .join(missing, on=["kind", "exchange"], how="left", maintain_order="left")
        .select(
            "process",
            "number",
            pl.when(~open_).then("until_ns").alias("until_ns"),
            pl.when(open_).then("missing").otherwise("by").alias("for_process"),
        )
    )


def _members(exchanges: Exchanges) -> pl.DataFrame:
    """Processes of groups: ``group``, ``group_rank``, ``missing``."""
    found = [
        (group.index, member.rank, member.process)
        for group in exchanges.trace.groups
        for member in group.members
    ]
    schema = {"group": pl.UInt32, "group_rank": pl.Int32, "missing": pl.UInt32}
    rows = pl.DataFrame(found, schema=schema, orient="row")
    # A restarted rank has several processes: which of them was meant is not known.
    return rows.unique(["group", "group_rank"], keep="none", maintain_order=True)


def _only_missing(exchanges: Exchanges) -> pl.DataFrame:
    """The one process that a collective lacks: ``kind``, ``exchange``, ``missing``."""
    lacking = exchanges.collectives.filter(pl.col("arrived") + 1 == pl.col("expected"))
    wanted = lacking.select("exchange", "group").join(_members(exchanges), on="group")
    here = exchanges.taking_part(lacking["exchange"]).select("exchange", "group_rank")
    return (
        wanted.join(here.collect(), on=["exchange", "group_rank"], how="anti")
        .unique("exchange", keep="none", maintain_order=True)
        .select(pl.lit("collective").alias("kind"), "exchange", "missing")
    )


def _other_ends(exchanges: Exchanges) -> pl.DataFrame:
    """The other end of a message of which one end was seen: the same columns."""
    send, receive = pl.col("send_number").is_null(), pl.col("recv_number").is_null()
    rows = exchanges.messages.filter(send | receive).with_columns(
        group_rank=pl.when(send).then("source").otherwise("destination").cast(pl.Int32)
    )
    return rows.join(_members(exchanges), on=["group", "group_rank"]).select(
        pl.lit("message").alias("kind"), pl.col("message").alias("exchange"), "missing"
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
