"""Where operations are drawn: on the line of their thread, or beside it, so that nothing overlaps.

On a line, operations are apart or one is inside the other. What the program does not wait for in
the call itself goes on while the thread does something else: it gets a line of its own, as many
per process as run at the same time.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import polars as pl

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
