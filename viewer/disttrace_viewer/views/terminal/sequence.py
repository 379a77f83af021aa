"""The merged order: which rows are shown, and those as values."""

from __future__ import annotations

import bisect
from collections.abc import Iterator
from typing import NamedTuple

import polars as pl
from rich.text import Text

from disttrace_viewer.analysis.exchanges import Exchanges
from disttrace_viewer.evidence.evidence import Evidence
from disttrace_viewer.trace.model import JobTrace
from disttrace_viewer.views.terminal import DIM, HOLD, NUMBER, WAIT
from disttrace_viewer.views.terminal.plan import (
    COLLECTIVE,
    MESSAGE,
    Filters,
    Plan,
    plan_of,
)
from disttrace_viewer.views.terminal.rows import Maker, Row, endings_of
from disttrace_viewer.wording.names import Lane, Names, duration, lanes_of, number, offset

HEAD, TAIL = 12, 48
"""Rows shown of a long job without options."""
FOLDED = 4
"""Kinds of rows shown of one fold: those that took longest."""
LAST = 3
"""Processes named that arrived last in folded rows."""


class SequenceView(NamedTuple):
    """Rows in their order, and the lanes beside them."""

    lanes: tuple[Lane, ...]
    rows: tuple[Row, ...]
    total: int
    """Exchanges and local steps that pass the filters, shown or not."""


def sequence_of(
    evidence: Evidence,
    exchanges: Exchanges,
    names: Names,
    filters: Filters,
    elsewhere: pl.DataFrame,
) -> SequenceView:
    """The sequence of a trace under the user's filters; ``elsewhere``: what is shown above it."""
    trace, origin_ns = exchanges.trace, exchanges.trace.launch_ns
    plan = plan_of(trace, exchanges, filters, elsewhere)
    pieces = _choose(plan.rows, filters.last)
    lanes = lanes_of(names, _actors(trace, plan, filters))
    wanted = [row for piece in pieces if isinstance(piece, Stretch) for row in piece.first]
    shown = Maker(evidence, names, lanes).rows(exchanges, plan, wanted)
    rows: list[Row] = []
    for piece in pieces:
        if isinstance(piece, Stretch):
            rows.extend(shown[row] for row in piece.first)
            if piece.period:
                rows.append(_folded(names, exchanges, plan, piece))
            continue
        gap_from, gap_to = plan.rows["first_ns"][piece.start], plan.rows["first_ns"][piece.stop - 1]
        text = f"… {number(len(piece), 'row')} not shown, until {offset(gap_to - origin_ns)}"
        rows.append(Row(gap_from - origin_ns, Text(text, DIM), between=True))
    if not filters.narrow:
        rows += endings_of(evidence, names, lanes)
    return SequenceView(lanes, tuple(sorted(rows, key=lambda row: row.at_ns)), plan.rows.height)


def _choose(rows: pl.DataFrame, last: int | None) -> list[Stretch | range]:
    """What to show, and ranges of rows that are left out, in order. Repetitions stay whole."""
    spans = fold(rows)
    schema = dict.fromkeys(("start", "stop", "period"), pl.Int64)
    of = pl.DataFrame(spans, schema, orient="row").with_row_index("span")
    row, period = pl.col("row"), pl.col("period")
    lines = pl.when(period > 0).then(period + 1).otherwise(1)
    to_it = pl.when((period == 0) | (row == pl.col("start"))).then(lines).otherwise(0).cum_sum()
    before, after = to_it - lines, to_it.last() - to_it
    if last is not None:
        kept = after < last
    else:
        kept = (before < HEAD) | (after < TAIL)
        # Unusual rows in a long gap are shown all the same.
        unusual = pl.col("unusual") & ~kept
        kept |= unusual & (unusual.cum_sum() <= TAIL)
    runs = (
        rows.select("unusual", row=pl.int_range(pl.len()))
        .join_asof(of, left_on="row", right_on="start", coalesce=False)
        .select(pl.when(kept).then("span").rle().alias("run"))
        .unnest("run")
    )
    found: list[Stretch | range] = []
    done = 0
    for count, span in runs.iter_rows():
        there = range(done, done + count)
        found.append(there if span is None else Stretch(done, there.stop, spans[span].period))
        done = there.stop
    return found


def _actors(trace: JobTrace, plan: Plan, filters: Filters) -> list[int]:
    """Processes with a lane: who speaks to others, or has a rank, or a step of its own."""
    talking = {m.process for g in trace.groups for m in g.members}
    alone = set(plan.locals["process"].unique().to_list())
    found = [
        p.index
        for p in trace.processes
        if not p.is_agent and (p.rank is not None or p.index in talking | alone)
    ]
    if filters.ranks is not None and len(found) > 8:
        # With many ranks, the chosen ones get lanes of their own.
        found = [i for i in found if trace.processes[i].rank in filters.ranks] or found
    return found


def _folded(names: Names, exchanges: Exchanges, plan: Plan, span: Stretch) -> Row:
    """The rows before it came again, all alike: from the same lines, with the same arguments."""
    rows = plan.rows
    first, last = rows["first_ns"][span.start], rows["first_ns"][span.stop - span.period]
    ends = rows["end_ns"].slice(span.start, span.stop - span.start).max()
    until = ends if isinstance(ends, int) else last
    hidden = rows.slice(span.start + span.period, span.stop - span.start - span.period)
    looks = list(_looks_of(names, exchanges, plan, hidden))
    like = "this" if span.period == 1 else f"these {span.period}"
    text = Text.assemble((f"x {span.repeats - 1:,} more like {like}", NUMBER))
    text.append(f" until {offset(until - names.trace.launch_ns)}", DIM)
    at_ns = rows["first_ns"][span.start + span.period - 1] - names.trace.launch_ns
    if len(looks) == 1:
        return Row(at_ns, text.append_text(looks[0][1]), between=True)
    each_ns = (last - first) // max(1, span.repeats - 1)
    below = [Text.assemble(f"  {what}", spread) for what, spread in looks[:FOLDED]]
    if len(looks) > FOLDED:
        below.append(Text(f"  and {number(len(looks) - FOLDED, 'quicker kind')}", style=DIM))
    text.append(f", one in {duration(each_ns)}", DIM)
    return Row(at_ns, text, tuple(below), between=True)


def _looks_of(
    names: Names, exchanges: Exchanges, plan: Plan, rows: pl.DataFrame
) -> Iterator[tuple[str, Text]]:
    """What was folded, by look, what took longest first: names of one kind of messages are one.

    With ``: median 12 ms, max 253 ms in #31; last: 2 x22, 0 x18``.
    """
    took = pl.col("end_ns") - pl.col("first_ns")
    last = exchanges.collectives.select(
        pl.lit(COLLECTIVE, pl.UInt8).alias("kind"),
        pl.col("exchange").alias("item"),
        pl.when(pl.col("arrived") > 1).then("last_process").alias("last"),
        "call",
    )
    table = (
        rows.lazy()
        .join(last.lazy(), on=["kind", "item"], how="left", maintain_order="left")
        .group_by("kind", "family", maintain_order=True)
        .agg(
            pl.col("item").first(),
            pl.col("call").first(),
            pl.len().alias("times"),
            took.median().round().cast(pl.Int64).alias("median"),
            took.max().alias("max"),
            pl.col("seq").get(took.arg_max()).alias("slowest"),
            took.sum().alias("sum"),
            pl.col("last").drop_nulls().value_counts(sort=True).alias("last"),
        )
        .sort("sum", descending=True, maintain_order=True)
        .collect()
    )
    for row in table.iter_rows(named=True):
        if row["kind"] == COLLECTIVE:
            what = names.trace.call(row["call"]).op
        elif row["kind"] == MESSAGE:
            what = "messages"
        else:
            what = plan.locals.filter(pl.col("item") == row["item"])["op"][0]
        median, most = duration(row["median"] or 0), duration(row["max"] or 0)
        at = "" if row["slowest"] is None else f" in #{row['slowest']}"
        text = Text.assemble((f": median {median}, max {most}{at}", DIM))
        last_ones = [(names.short[one["last"]], one["count"]) for one in row["last"]]
        if last_ones:
            others = sum(count for _, count in last_ones[LAST:])
            shown = [*last_ones[:LAST], *([("others", others)] if others else [])]
            named = ", ".join(f"{name}{HOLD}x{count:,}" for name, count in shown)
            text.append(f"; last: {named}", WAIT)
        yield what, text


PERIODS = 64
"""Longest iteration looked for, in rows."""
REPEATS = 3
"""Fewer repetitions are shown one by one."""
HIDDEN = 8
"""Folding must spare at least so many rows."""


class Stretch(NamedTuple):
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


def fold(rows: pl.DataFrame) -> list[Stretch]:
    """Spans that cover all ``rows`` (columns of a plan) in order. An unusual row is in no
    repetition; what runs side by side is compared without regard to its order."""
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
    found: list[Stretch] = []
    # What shows fewest rows for those that it covers comes first: steps before what repeats in one,
    # and steps before ten of them with a rare call.
    for start, stop, period in sorted(_runs(kinds), key=lambda r: ((r[2] + 1) / (r[1] - r[0]), r)):
        after = bisect.bisect_right(found, start, key=lambda span: span.start)
        begin = max(start, found[after - 1].stop) if after else start
        stop = min(stop, found[after].start) if after < len(found) else stop
        repeats = (stop - begin) // period
        if repeats >= REPEATS and (repeats - 1) * period >= HIDDEN:
            found.insert(after, Stretch(begin, begin + repeats * period, period))
    spans: list[Stretch] = []
    for span in (*found, Stretch(count, count)):
        done = spans[-1].stop if spans else 0
        spans += [one for one in (Stretch(done, span.start), span) if one.start < one.stop]
    return spans


def _runs(kinds: pl.Series) -> list[tuple[int, int, int]]:
    """(start, stop, period) of everything that repeats often enough."""
    found: list[tuple[int, int, int]] = []
    for period in range(1, min(PERIODS, len(kinds) // REPEATS) + 1):
        same, least = kinds.slice(period) == kinds.head(-period), period * (REPEATS - 1)
        if (same.sum() or 0) < least:
            continue
        runs = same.rle().struct.unnest().with_columns(stop=pl.col("len").cum_sum())
        for length, stop in runs.filter("value", pl.col("len") >= least).drop("value").iter_rows():
            found.append((stop - length, stop + period, period))
    return found
