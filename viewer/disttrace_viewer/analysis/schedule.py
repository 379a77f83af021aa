"""How operations hang together in time: what each process did between, and which it waited for.

Each operation is one or two events of its process: the *arrival*, when it comes to the exchange,
and the *completion*, when it goes on. Between two events a process does something of its own (the
*gap*: computation, loading, stores, whatever is not an exchange), and a completion needs arrivals
of others: of all members, of the root, or of none. From this follow the critical path and what a
run would have taken without something (Scalasca's replay, scalasca.org; What-if, OSDI 2025).

What C++ or a device waits for holds its process up only where the process did nothing else
meanwhile: a bucket of DDP's that ended while the next one began was hidden behind backward.

Of a run of many operations the newest are looked at (``newest``).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import NamedTuple

import polars as pl

from disttrace_viewer.analysis.wait_states import FROM_ROOT, REMARKABLE, WaitStates, weighted_mean
from disttrace_viewer.trace.values import dataclass, replace

ARRIVAL, COMPLETION = 0, 1
NO_PROCESS, ROOT, ALL = 0, 1, 2
"""Whose arrivals a completion needs."""
BLOCKED_NS = 200_000
"""A wait that returns sooner found its work done: how long that took is not known. A process
that begins to wait sooner did nothing between."""
MOST_OPERATIONS = 500_000
"""Of more, the newest."""


def newest(waits: WaitStates) -> WaitStates:
    """The end of a run of too many operations, as a window; of others all."""
    begins = waits.parts["begin_ns"]
    if len(begins) <= MOST_OPERATIONS:
        return waits
    return replace(waits, from_ns=begins.sort()[-MOST_OPERATIONS])


@dataclass(frozen=True)
class Schedule:
    """The events of a trace, by time."""

    waits: WaitStates
    lines: pl.DataFrame
    """``call``, ``line`` (``file:line`` of the user's frame, or null)."""

    @property
    def known_lines(self) -> list[str]:
        """All lines that communicate, sorted."""
        calls = self.waits.parts["call"].unique()
        found = self.lines.filter(pl.col("call").is_in(calls.implode()))
        return [str(line) for line in found["line"].drop_nulls().unique().sort()]

    @cached_property
    def events(self) -> pl.DataFrame:
        """One row per event, by time, arrivals first.

        ``event`` (``ARRIVAL`` or ``COMPLETION``), ``process``, ``exchange`` (a number of its own
        for messages), ``group``, ``call``, ``line``, ``is_root``; ``at_ns`` (it is over then),
        ``before_ns`` (so was the process's event before), ``gap_ns`` (what it did since),
        ``excess_ns`` (of that, what others did not need), ``own_ns`` (what the event
        takes by itself), ``needs`` (``ALL``, ``ROOT``, ``NO_PROCESS``) and ``transfer_ns`` (from
        the arrival of those to the completion).
        """
        rows = self._rows
        hidden = _UNSEEN & pl.col("wait_begin_ns").is_null() & (pl.col("_next_ns") < _END)
        begin = pl.col("begin_ns")
        arrivals = rows.select(
            *_KEPT,
            pl.lit(ARRIVAL, pl.UInt8).alias("event"),
            begin.alias("_start"),
            pl.when(_WHOLE).then(begin).otherwise("issued_ns").alias("at_ns"),
            begin.alias("_order"),
            (pl.when(_WHOLE).then(begin).otherwise("issued_ns") - begin).alias("own_ns"),
            pl.lit(NO_PROCESS, pl.UInt8).alias("needs"),
            pl.lit(0, pl.Int64).alias("transfer_ns"),
        )
        start = pl.col("_from_ns")
        blocked = (start <= pl.col("_met")) | (_END - start > BLOCKED_NS)
        waited = rows.filter(~hidden & (_WHOLE | pl.col("wait_begin_ns").is_not_null()))
        transfer = pl.max_horizontal(_END - pl.col("_met"), pl.lit(0)).fill_null(0)
        usual = transfer.filter(blocked & (pl.col("_needs") != NO_PROCESS)).median()
        known = pl.when(pl.col("_needs") == ALL).then(
            pl.min_horizontal(
                transfer, usual.over("op", "group", "bytes").fill_null(0).cast(pl.Int64)
            )
        )
        idle = blocked & (pl.col("_needs") != NO_PROCESS)
        completions = waited.select(
            *_KEPT,
            pl.lit(COMPLETION, pl.UInt8).alias("event"),
            start.alias("_start"),
            _END.alias("at_ns"),
            _END.alias("_order"),
            pl.when(idle).then(0).otherwise(_END - start).alias("own_ns"),
            pl.col("_needs").cast(pl.UInt8).alias("needs"),
            pl.when(idle).then(transfer).otherwise(known.fill_null(0)).alias("transfer_ns"),
        )
        events = pl.concat([arrivals, completions]).sort("_order", "event", "process")
        before = pl.col("at_ns").shift(1).over("process").fill_null(pl.col("from_ns"))
        events = events.with_columns(before_ns=before, gap_ns=pl.col("_start") - before)
        return self._with_excess(events).drop("_start", "_order", "from_ns").collect()

    @cached_property
    def _rows(self) -> pl.LazyFrame:
        """Operations that were over, with which they needed and when those had come."""
        parts = _as_early_as_known(
            self.waits.parts.lazy().filter(~pl.col("in_flight") & ~pl.col("never")),
            self.waits.exchanges.trace.completions,
        )
        first = self.waits.exchanges.collectives.height
        number = pl.when(pl.col("kind") == "message").then(pl.col("exchange") + first)
        rooted = pl.col("op").is_in(FROM_ROOT) & ~pl.col("is_root")
        root = pl.col("begin_ns").filter("is_root").first().over("exchange")
        met = (
            pl.when(rooted & pl.col("_root_ns").is_not_null())
            .then(pl.max_horizontal("_from_ns", "_root_ns"))
            .when(pl.col("came_ns") <= _END)
            .then("came_ns")
        )
        # Clocks that are a little apart release a rank before those came that it needs.
        needs = (
            pl.when(met.is_null() | (met > _END))
            .then(NO_PROCESS)
            .when(rooted)
            .then(ROOT)
            .otherwise(ALL)
        )
        return (
            parts.with_columns(exchange=number.otherwise("exchange").cast(pl.UInt32))
            .with_columns(
                _root_ns=root, _from_ns=pl.when(_WHOLE).then("begin_ns").otherwise("wait_begin_ns")
            )
            .with_columns(_met=met, _needs=needs)
            .join(self.lines.lazy(), on="call", how="left", maintain_order="left")
            .join(self.waits.lives.lazy().select("process", "from_ns"), on="process")
            .sort("process", "begin_ns", "number")
            .with_columns(_next_ns=pl.col("begin_ns").shift(-1).over("process"))
        )

    def _with_excess(self, events: pl.LazyFrame) -> pl.LazyFrame:
        """``excess_ns``: by how much a gap is longer than is usual.

        Of a collective that is the lower median of its members; of messages, whose ends do
        different things, that of all processes which pass the line, or of the process itself where
        it alone does. What is small beside a line's others is jitter.
        """
        gap = pl.col("gap_ns")
        middle = gap.quantile(0.5, "lower").over("exchange", "event").cast(pl.Int64)
        line = ["event", "op", "line"]
        lines = (
            events.filter(pl.col("kind") == "message")
            .group_by(*line, "process")
            .agg(gap.median())
            .group_by(line)
            .agg(gap.quantile(0.5, "lower").cast(pl.Int64).alias("_usual"))
        )
        # What came before a process's first message is its start.
        started = pl.col("before_ns") > pl.col("from_ns")
        usual = pl.when(pl.col("kind") == "collective").then(middle).when(started).then("_usual")
        excess = pl.max_horizontal(gap - usual, pl.lit(0)).fill_null(0)
        notable = REMARKABLE * weighted_mean(pl.col("excess_ns")).over("process", "line")
        return (
            events.join(lines, on=line, how="left", nulls_equal=True, maintain_order="left")
            .with_columns(excess_ns=excess)
            .with_columns(
                excess_ns=pl.when(pl.col("excess_ns") >= notable).then("excess_ns").otherwise(0)
            )
            .drop("_usual")
        )


def _as_early_as_known(parts: pl.LazyFrame, completions: pl.DataFrame) -> pl.LazyFrame:
    """An end that is seen late was up to ``slack_ns`` before, but not before all had come."""
    slack = completions.lazy().select("process", "number", "slack_ns")
    early = pl.max_horizontal(
        "begin_ns", "came_ns", pl.col("end_ns") - pl.col("slack_ns").fill_null(0)
    )
    return (
        parts.join(slack, on=["process", "number"], how="left")
        .with_columns(
            end_ns=pl.when("unseen").then(pl.min_horizontal(early, "end_ns")).otherwise("end_ns")
        )
        .drop("slack_ns")
    )


_UNSEEN, _END = pl.col("unseen"), pl.col("end_ns")
_WHOLE = (
    pl.col("issued_ns").is_null()
    | (pl.col("wait_begin_ns").is_null() & _UNSEEN)
    | (pl.col("wait_begin_ns") - pl.col("issued_ns") <= BLOCKED_NS).fill_null(value=False)
)
"""Its process was in it from begin to end; else until it was issued, and while it waited."""
_KEPT = ("process", "exchange", "kind", "op", "group", "call", "line", "is_root", "from_ns")


OUTSIDE, TRANSFER, INSIDE = "outside", "transfer", "inside"
"""Between operations; from the last arrival to the completion; in a call, waiting for none."""

STRETCHES = {
    "process": pl.UInt32(),
    "kind": pl.String(),
    "op": pl.String(),
    "line": pl.String(),
    "time_ns": pl.Int64(),
}


class _Event(NamedTuple):
    """Some columns of ``Schedule.events``."""

    event: int
    process: int
    exchange: int
    at_ns: int
    before_ns: int
    gap_ns: int
    needs: int
    op: str
    line: str | None
    is_root: bool


Stretches = dict[tuple[int, str, str | None, str | None], int]
"""Nanoseconds by process, kind, operation and line."""


def critical_path(schedule: Schedule) -> pl.DataFrame:
    """``process kind op line time_ns``, summed and largest first: the stretches of the path.

    ``OUTSIDE`` is what a process did before ``op`` at ``line``, or after it at the end of its life
    (then both are null); ``TRANSFER`` and ``INSIDE`` are the operation's own.
    """
    waits = schedule.waits
    lives = {p: (low, high) for p, low, high in waits.lives.iter_rows()}
    end = None if waits.is_complete else next(iter(waits.never), None)
    if end is None and not waits.is_complete:
        return pl.DataFrame(schema=STRETCHES)
    events = list(map(_Event._make, schedule.events.select(_Event._fields).iter_rows()))
    rows = [(*key, time) for key, time in _walk(events, lives, end).items()]
    table = pl.DataFrame(rows, schema=STRETCHES, orient="row")
    return table.sort("time_ns", "process", "line", descending=[True, False, False])


def _walk(
    events: list[_Event], lives: Mapping[int, tuple[int, int]], culprit: int | None
) -> Stretches:
    """The path through the events, from the end of the run, or of the culprit, on."""
    before, last, root = _links(events)
    newest: dict[int, int] = {event.process: place for place, event in enumerate(events)}
    found: Stretches = {}

    def add(process: int, kind: str, op: str | None, line: str | None, time: int) -> None:
        if time > 0:
            key = (process, kind, op, line)
            found[key] = found.get(key, 0) + time

    end = max(newest, key=lambda process: lives[process][1], default=None)
    end = end if culprit is None else culprit
    if end is None or end not in newest:
        return found
    add(end, OUTSIDE, None, None, lives[end][1] - events[newest[end]].at_ns)
    place: int | None = newest[end]
    while place is not None:
        event = events[place]
        came = (last if event.needs == ALL else root).get(event.exchange)
        waited = event.event == COMPLETION and event.needs != NO_PROCESS and came is not None
        if waited and came is not None and events[came].at_ns > event.before_ns + event.gap_ns:
            # Nothing that this one did would have let it go earlier.
            add(event.process, TRANSFER, event.op, event.line, event.at_ns - events[came].at_ns)
            place = came
            continue
        start = event.before_ns + event.gap_ns
        kind = TRANSFER if waited else INSIDE
        add(event.process, kind, event.op, event.line, event.at_ns - start)
        if before[place] is not None:  # else it is the start-up
            add(event.process, OUTSIDE, event.op, event.line, event.gap_ns)
        place = before[place]
    return found


def _links(
    events: list[_Event],
) -> tuple[list[int | None], dict[int, int], dict[int, int]]:
    """Of each event the one before it in its process; of each exchange its last and root arrival.

    An arrival is over when its operation was issued; what others need of it is that it began.
    """
    before: list[int | None] = []
    newest: dict[int, int] = {}
    last: dict[int, int] = {}
    root: dict[int, int] = {}
    for place, event in enumerate(events):
        before.append(newest.get(event.process))
        newest[event.process] = place
        if event.event != COMPLETION:
            # By time, so the last one stays.
            last[event.exchange] = place
            if event.is_root:
                root[event.exchange] = place
    return before, last, root
