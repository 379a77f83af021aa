"""Finds iterations in the merged order: rows that repeat with a period are shown once."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

PERIODS = 64
"""Longest iteration looked for, in rows."""
REPEATS = 3
"""Fewer repetitions are shown one by one."""
HIDDEN = 8
"""Folding must spare at least so many rows."""


@dataclass(frozen=True, slots=True)
class Span:
    """Rows ``start`` to ``stop`` (excluded); ``period`` 0 means that they do not repeat."""

    start: int
    stop: int
    period: int = 0

    @property
    def repeats(self) -> int:
        """How many times the period is there."""
        return (self.stop - self.start) // self.period if self.period else 1

    @property
    def first(self) -> range:
        """The rows of the first iteration, or all of them."""
        return range(self.start, self.start + self.period if self.period else self.stop)

    @property
    def shown(self) -> int:
        """Rows that are shown for it: the first iteration and a line that counts the rest."""
        return self.period + 1 if self.period else self.stop - self.start


def fold(rows: pl.DataFrame) -> list[Span]:
    """Spans that cover all ``rows`` (columns of a plan) in order.

    An unusual row is in no repetition. What runs side by side, such as messages between different
    pairs, comes in another order every time: it is compared without regard to that.
    """
    count = rows.height
    if not count:
        return []
    alone = -1 - pl.int_range(pl.len(), dtype=pl.Int64)
    usual = ~pl.col("unusual")
    frame = rows.select(
        "seq",
        # Unusual rows are unlike everything, so no period reaches over them, and none moves.
        pl.when(usual)
        .then(pl.col("signature").rank("dense").cast(pl.Int64))
        .otherwise(alone)
        .alias("kind"),
        pl.when(usual)
        .then(pl.col("family").rank("dense").cast(pl.Int64))
        .otherwise(alone)
        .alias("family"),
    )
    kinds = frame.with_columns(run=pl.col("family").rle_id()).sort("run", "seq", "kind")["kind"]
    spans: list[Span] = []
    done = 0
    for start, stop, period in sorted(_runs(kinds), key=lambda r: (r[0], r[2] - (r[1] - r[0]))):
        begin = max(start, done)
        repeats = (stop - begin) // period
        if repeats < REPEATS or (repeats - 1) * period < HIDDEN:
            continue
        if begin > done:
            spans.append(Span(done, begin))
        done = begin + repeats * period
        spans.append(Span(begin, done, period))
    if done < count:
        spans.append(Span(done, count))
    return spans


def _runs(kinds: pl.Series) -> list[tuple[int, int, int]]:
    """(start, stop, period) of everything that repeats often enough."""
    found: list[tuple[int, int, int]] = []
    for period in range(1, min(PERIODS, len(kinds) // REPEATS) + 1):
        same = (kinds == kinds.shift(period)).fill_null(value=False)
        runs = same.rle().struct.unnest()
        runs = runs.with_columns(start=pl.col("len").cum_sum() - pl.col("len"))
        long = runs.filter(pl.col("value") & (pl.col("len") >= period * (REPEATS - 1)))
        found.extend(
            (start - period, start + length, period)
            for start, length in long.select("start", "len").iter_rows()
        )
    return found
