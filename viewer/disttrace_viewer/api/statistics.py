"""Where the time goes, as Polars frames: ``disttrace.stats``."""

from __future__ import annotations

import html
import io
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import cached_property
from typing import Any

import polars as pl

from disttrace_viewer.analysis.exchanges import Exchanges
from disttrace_viewer.analysis.schedule import MOST_OPERATIONS, Schedule, critical_path, newest
from disttrace_viewer.analysis.statistics import KEYS, Statistics, overlap
from disttrace_viewer.analysis.wait_states import WaitStates
from disttrace_viewer.analysis.what_if import WhatIf, WhatIfOutcome, Without
from disttrace_viewer.api.reading import Paths, read
from disttrace_viewer.diagnosis.job import verdict_on
from disttrace_viewer.load.problems import ViewerError
from disttrace_viewer.trace import model
from disttrace_viewer.trace.model import JobTrace
from disttrace_viewer.views import tables
from disttrace_viewer.views.tables import of_indices
from disttrace_viewer.views.terminal import DIM
from disttrace_viewer.views.terminal.console import TextConsole
from disttrace_viewer.views.terminal.plan import parse_time
from disttrace_viewer.views.terminal.stats import paint, paint_critical_path, paint_what_if
from disttrace_viewer.wording.names import few

FORMAT = 1
BY = {None: KEYS, "line": ("line",), "group": ("group",), "op": ("op",), "rank": KEYS}
"""What ``by`` may name, and the keys of a row of ``operations`` then."""
NUMBERS = (
    *("calls", "bytes", "total_ns", "median_ns", "p99_ns", "max_ns", "waiting_ns"),
    *("never_completed_ns", "last_to_arrive", "algbw", "busbw", "clock"),
)


class Stats:
    """Where the time of a job goes. Sums are over ranks; times are nanoseconds.

    The columns of its frames: docs/json.md, Statistics; how each number is made: docs/python.md.
    """

    def __init__(
        self, trace: model.JobTrace, *, from_: str | None = None, to: str | None = None
    ) -> None:
        """``disttrace.stats`` makes one."""
        self._trace = trace
        low, high = (None if at is None else parse_time(at, trace.launch_ns) for at in (from_, to))
        if low is not None and high is not None and low >= high:
            raise ViewerError(f"there is nothing from {from_} to {to}: the end is not after it")
        exchanges = Exchanges(trace)
        waits = WaitStates(exchanges, from_ns=low, to_ns=high)
        if waits.parts["never"].any():
            waits = replace(waits, blame=verdict_on(trace, exchanges).blame)
        self.statistics = Statistics(waits, tables.calls(trace, {"line"}).select("call", "line"))
        """The tables underneath, for disttrace's own views; no stable interface."""

    @cached_property
    def operations(self) -> pl.DataFrame:
        """One row per operation, group and line, longest ``total_ns`` first; ``clock`` is whose
        time bandwidths are of: ``device`` where the backend measured it, else ``host``.
        """
        return self.by(KEYS)

    def by(self, keys: Sequence[str]) -> pl.DataFrame:
        """``operations`` by other keys of ``op``, ``group`` and ``line``; those left out are null.

        ``["rank"]`` gives ``ranks``: a rank's time is split by where it went, not by operation.

        Raises:
            ValueError: for another key.
        """
        keys = [keys] if isinstance(keys, str) else list(keys)
        if keys == ["rank"]:
            return self.ranks
        if not set(keys) <= set(KEYS) or not keys:
            raise ValueError(f"by {keys!r}; allowed are {', '.join(KEYS)}")
        trace = self._trace
        found = self.statistics.by(keys)
        if "group" in keys:
            found = found.with_columns(group=of_indices(trace, "group").gather(found["group"]))
        rank = (
            pl.element()
            .struct.field("process")
            .replace_strict(
                list(range(len(trace.processes))),
                [p.rank for p in trace.processes],
                return_dtype=pl.Int64,
            )
        )
        count = pl.element().struct.field("count").cast(pl.Int64)
        last = pl.col("last_to_arrive").list.eval(
            pl.struct(rank.alias("rank"), count.alias("count"))
        )
        empty = pl.lit([], dtype=pl.List(pl.Struct({"rank": pl.Int64, "count": pl.Int64})))
        absent = [pl.lit(None, pl.String).alias(key) for key in KEYS if key not in keys]
        return found.with_columns(
            *absent, last.fill_null(empty), pl.col("calls").cast(pl.Int64)
        ).select(*KEYS, *NUMBERS)

    @cached_property
    def ranks(self) -> pl.DataFrame:
        """One row per process with a rank, by rank: where the time of its life went."""
        found = self._named(self.statistics.ranks)
        return found.sort("rank", "process", nulls_last=True)

    @cached_property
    def origins(self) -> pl.DataFrame:
        """Before which line the time went, largest ``caused_ns`` first: a rank came late by its own
        doing ``count`` times of ``of`` at that line.
        """
        return self._named(self.statistics.origins).drop("process")

    @cached_property
    def wait_states(self) -> pl.DataFrame:
        """Wait states in Scalasca's words and the rest; they add up to ``wall_ns``."""
        return self.statistics.states

    @cached_property
    def what_if(self) -> pl.DataFrame:
        """What the run would have taken without something, largest gain first. ``wall_ns`` is that
        of the run, unlike ``Stats.wall_ns``, which sums ranks. What is left out: docs/foresight.md.
        """
        return pl.DataFrame([gain(one, self._trace) for one in self._answers()], schema=ROWS)

    def without(self, question: str) -> dict[str, Any]:
        """One answer: ``without("rank=2")``, ``"line=loader.py:34"``, ``"host=node7"``,
        ``"group=ID"``, ``"rank=2,line=loader.py:34"``; as an element of ``what_if`` in the JSON.

        Raises:
            ViewerError: for what is no question, or names nothing that is in the trace.
        """
        return gain(self._answers([question])[0], self._trace)

    def _answers(self, asked: Sequence[str] = ()) -> list[WhatIfOutcome]:
        """To questions; without any, those that are tried by themselves."""
        questions = [parse_without(one, self._schedule) for one in asked]
        return [self._what_if.of(one) for one in questions] or self._what_if.best

    @cached_property
    def critical_path(self) -> pl.DataFrame:
        """What the run's length is made of, largest first."""
        return self._named(critical_path(self._schedule))

    @cached_property
    def overlap(self) -> pl.DataFrame:
        """How much of its communication each rank hid: ``in_flight_ns``, ``overlapped_ns``."""
        return self._named(overlap(self.statistics.waits))

    @cached_property
    def _schedule(self) -> Schedule:
        return Schedule(newest(self.statistics.waits), self.statistics.lines)

    @cached_property
    def _what_if(self) -> WhatIf:
        return WhatIf(self._schedule)

    @property
    def wall_ns(self) -> int:
        """The lives of all ranks, summed."""
        return int(self.ranks["wall_ns"].sum())

    @property
    def communicating_ns(self) -> int:
        """What all ranks were blocked in communication."""
        return int(self.ranks["communicating_ns"].sum())

    @property
    def waiting_ns(self) -> int:
        """The part of that in which they waited for others to arrive."""
        return int(self.ranks["waiting_ns"].sum())

    def to_dict(self, by: str | None = None, *, asked: Sequence[str] = ()) -> dict[str, Any]:
        """The values of ``stats --json``; ``asked``: questions as for ``without``, in the place of
        those that are tried by themselves.

        Raises:
            ValueError: for a ``by`` that is none of ``BY``.
        """
        if by not in BY:
            raise ValueError(f"by {by!r}; allowed are {', '.join(filter(None, BY))}")
        return {
            "format": FORMAT,
            "wall_ns": self.wall_ns,
            "communicating_ns": self.communicating_ns,
            "waiting_ns": self.waiting_ns,
            "operations": self.by(BY[by]).drop("clock").to_dicts(),
            "ranks": self.ranks.to_dicts(),
            "origins": self.origins.to_dicts(),
            "wait_states": self.wait_states.to_dicts(),
            "what_if": [gain(one, self._trace) for one in self._answers(asked)],
            "critical_path": self.critical_path.to_dicts(),
            "incomplete": [problem.sentence for problem in self._trace.problems],
        }

    def print(
        self,
        by: str | None = None,
        *,
        asked: Sequence[str] = (),
        width: int | None = None,
        color: bool | None = None,
    ) -> None:
        """The tables on standard output, as ``disttrace stats`` shows them."""
        self._paint(TextConsole(width=width, color=color), by, asked)

    def text(self, by: str | None = None, *, width: int = 100) -> str:
        """The tables as text without colour."""
        file = io.StringIO()
        self._paint(TextConsole(file, width=width, color=False), by, ())
        return file.getvalue().rstrip("\n")

    def _paint(self, out: TextConsole, by: str | None, asked: Sequence[str]) -> None:
        paint(self.statistics, out, by=by, whole=not self._trace.problems)
        paint_what_if(self._what_if, self._answers(asked), out)
        paint_critical_path(critical_path(self._schedule), self._trace, out)
        if self._schedule.waits is not self.statistics.waits:
            part = f"of the newest {MOST_OPERATIONS:,} operations; --from and --to choose others"
            out.put((f"  what if and critical path are {part}", DIM))
        if self._trace.problems:
            out.put()
        for problem in self._trace.problems:
            out.put(f"Incomplete: {problem.sentence}")

    def _named(self, rows: pl.DataFrame) -> pl.DataFrame:
        """``rank`` and the id of a process in the place of its index."""
        owners = (of_indices(self._trace, name) for name in ("rank", "process"))
        rank, process = (values.gather(rows["process"]) for values in owners)
        others = [name for name in rows.columns if name != "process"]
        return rows.select(rank.alias("rank"), process.alias("process"), *others)

    def __str__(self) -> str:
        return self.text()

    def __repr__(self) -> str:
        share = self.waiting_ns / max(1, self.communicating_ns)
        seconds = self.communicating_ns / 1e9
        return f"<disttrace.Stats: {seconds:.3g} s in communication, {share:.0%} of it waiting>"

    def _repr_html_(self) -> str:
        """The tables in a notebook."""
        return f"<pre>{html.escape(str(self))}</pre>"


def stats(path: Paths = None, job: str | None = None) -> Stats:
    """Where the time of a job goes (see ``load`` for ``path``, ``job`` and errors)."""
    return Stats(read(path, job))


FORM = "rank=2, line=loader.py:34, host=node7, group=ID, or several with commas between"
WITHOUT: dict[str, type[pl.DataType]] = {
    "rank": pl.Int64,
    "line": pl.String,
    "host": pl.String,
    "group": pl.String,
}
ROWS: dict[str, pl.DataType | type[pl.DataType]] = {
    "without": pl.Struct(WITHOUT),
    "wall_ns": pl.Int64,
    "saved_ns": pl.Int64,
    "saved_share": pl.Float64,
}


def parse_without(question: str, schedule: Schedule) -> Without:
    """``rank=2`` and the like; a line by its whole path or the end of it, a group by its id, name
    or description.

    Raises:
        ViewerError: for what is no question, or names nothing that is in the trace.
    """
    found = Without()
    for part in question.split(","):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or key not in WITHOUT or not value:
            raise ViewerError(f"--what-if {question}: not understood; it takes {FORM}")
        found = replace(found, **{key: _known(key, value, schedule)})
    if found.group is not None and found != Without(group=found.group):
        raise ViewerError(f"--what-if {question}: a group is left out by itself")
    return found


def gain(outcome: WhatIfOutcome, trace: JobTrace) -> dict[str, Any]:
    """An element of ``what_if`` in ``stats --json``."""
    without = outcome.without
    keys = {key: value for key, value in asdict(without).items() if value is not None}
    if without.group is not None:
        keys["group"] = trace.groups[without.group].id
    return {**outcome._asdict(), "without": keys}


def _known(key: str, value: str, schedule: Schedule) -> Any:
    trace = schedule.waits.exchanges.trace
    named: list[tuple[str, Any]]
    if key == "line":
        named = [(line, line) for line in schedule.known_lines]
    elif key == "group":
        named = [
            (name, one.index)
            for one in trace.groups
            for name in (one.id, one.name, one.desc, "default" if one.default else None)
            if name
        ]
    else:
        values = {getattr(one, key) for one in trace.processes} - {None, ""}
        named = [(str(one), one) for one in sorted(values)]
    for name, thing in named:
        if name == value:
            return thing
    ends = [name for name, _ in named if key == "line" and name.endswith(f"/{value}")]
    if len(ends) == 1:
        return ends[0]
    why = "several end like that" if ends else "nothing of that name"
    some = few(ends or list(dict.fromkeys(name for name, _ in named)), 5) or "none"
    raise ViewerError(f"--what-if {key}={value}: {why} communicates; there are {some}")
