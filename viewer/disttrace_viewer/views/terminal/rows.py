"""The rows of the merged order as values; how processes ended, and what was in flight then."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

import polars as pl
from rich.text import Text

from disttrace_viewer.analysis.process_ends import EXITED, FAILED, KILLED, UNKNOWN
from disttrace_viewer.analysis.sample import innermost
from disttrace_viewer.evidence.evidence import Evidence
from disttrace_viewer.evidence.peer_addresses import end_of
from disttrace_viewer.trace.columns import IN_FLIGHT
from disttrace_viewer.views.terminal import BAD, DIM
from disttrace_viewer.wording.names import Describer, Lane, Names, brief, place
from disttrace_viewer.wording.sentences import ended, state


class Mark(Enum):
    """What is drawn on a lane."""

    DONE = "done"
    LAST = "last"
    """The one that arrived last."""
    FLYING = "flying"
    """Begun and not over."""
    MISSING = "missing"
    """Expected, and did not arrive."""
    FAILED = "failed"
    UNKNOWN = "unknown"
    """Begun; its completion was not seen."""
    PART = "part"
    """A lane of several, of which some arrived."""


@dataclass(frozen=True, slots=True)
class Flight:
    """Processes that are in one operation at one line, and since when the first of them is."""

    what: str
    processes: tuple[int, ...]
    age_ns: int
    place: str | None
    ended: bool = False
    """The processes are not known to live: it was in flight when they ended."""
    silent: bool = False
    """It is not known whether they ended: it was in flight when they were last heard of."""
    outside: bool = False
    """In no operation at all: see ``what``; the age is since it stands at its place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """An exchange, a step, a repetition, a gap or an end of processes."""

    at_ns: int | None
    """From the start of the job on; None: of a repetition, into which nothing is put."""
    text: Text
    below: tuple[Text, ...] = ()
    """Further lines."""
    marks: tuple[tuple[int, Mark], ...] = ()
    """(lane, mark), by lane."""
    joined: bool = False
    """A line joins the marks."""
    arrow: tuple[int, int] | None = None
    """From lane to lane."""
    place: str | None = None
    """Where it was called from, for those who ask."""
    between: bool = False
    """It stands between rows: a repetition or a gap."""


MOST = 200
"""Operations in flight that are shown, the oldest."""


def endings_of(
    evidence: Evidence, names: Names, lanes: Sequence[Lane], origin_ns: int
) -> list[tuple[int, Row]]:
    """Processes that did not end well, or of which nothing was heard any more, by time (from the
    start of the job on): one row for those that are alike.
    """
    found: dict[tuple[str, str | None], list[tuple[int, int]]] = {}
    for index, end in enumerate(evidence.ends):
        if end.state not in (FAILED, KILLED, UNKNOWN):
            continue
        what = state(end) if end.state == UNKNOWN else brief(ended(end_of(evidence, index)))
        stack = end.asked_at if end.failure is None else end.failure.stack
        heard_ns = evidence.trace.processes[index].last_ns
        when = end.t_ns if end.silent_ns is None else heard_ns
        found.setdefault((what, place(stack)), []).append((when, index))
    rows = []
    for (what, where), those in found.items():
        those.sort()
        processes = tuple(index for _, index in those)
        hit = [n for n, lane in enumerate(lanes) if not {*processes}.isdisjoint(lane.processes)]
        text = Text.assemble((names.processes(processes), BAD), f" {what}")
        text.append(f"  {where}" if where else "", DIM)
        marks = tuple((lane, Mark.FAILED) for lane in hit)
        at_ns = those[0][0] - origin_ns
        rows.append((at_ns, Row(at_ns=at_ns, text=text, marks=marks)))
    return sorted(rows, key=lambda row: row[0])


def flights_at(
    evidence: Evidence,
    what: str,
    where: str | None,
    found: Iterable[tuple[int, int]],
    *,
    outside: bool = False,
) -> tuple[Flight, ...]:
    """Processes, each with an age in ns, that are in one operation at one place: those that run,
    those that are over and those of which it is not known apart.
    """
    grouped: dict[tuple[bool, bool], list[tuple[int, int]]] = {}
    for age, index in sorted(found):
        end = evidence.ends[index]
        grouped.setdefault((not end.runs, end.state == UNKNOWN), []).append((age, index))
    return tuple(
        Flight(
            what=what,
            processes=tuple(dict.fromkeys(index for _, index in sorted(those, key=lambda f: f[1]))),
            age_ns=max(0, *(age for age, _ in those)),
            place=where,
            ended=gone,
            silent=silent,
            outside=outside,
        )
        for (gone, silent), those in grouped.items()
    )


def flights_of(evidence: Evidence, names: Names) -> tuple[Flight, ...]:
    """Operations in flight where the recording stops, innermost per thread, oldest first."""
    trace = names.trace
    describer = Describer(trace, names)
    pending = trace.operations.filter(IN_FLIGHT & ~pl.col("lost"))
    outer = pending.select("process", pl.col("parent").alias("number")).drop_nulls()
    pending = pending.join(outer, on=["process", "number"], how="anti", maintain_order="left")
    grouped: dict[tuple[str, str | None], list[tuple[int, int]]] = {}
    for row in pending.iter_rows(named=True):
        process = row["process"]
        op = evidence.sample.get(process, row["number"])
        stack = (op and op.awaited_at) or trace.stack(row["call"])
        key = (describer.title(row), place(stack))
        age = evidence.until_ns(process) - row["begin_ns"]
        grouped.setdefault(key, []).append((age, process))
    flights = [
        one
        for (what, where), found in grouped.items()
        for one in flights_at(evidence, what, where, found)
    ]
    return tuple(sorted(flights, key=lambda f: -f.age_ns)[:MOST])


def samples_of(evidence: Evidence, flights: Sequence[Flight]) -> tuple[Flight, ...]:
    """Where those stand that are in no operation while others are, as far as they noted it."""
    trace = evidence.trace
    busy = {index for flight in flights for index in flight.processes}
    grouped: dict[str, list[tuple[int, int]]] = {}
    for index, stands in evidence.samples.items():
        where = place(stands.stack)
        end = evidence.ends[index]
        agent = trace.processes[index].is_agent
        if index in busy or agent or innermost(stands.stack) is None or end.state == EXITED:
            continue
        if where is not None:
            age = evidence.until_ns(index) - stands.t_ns
            grouped.setdefault(where, []).append((age, index))
    return tuple(
        one
        for where, found in grouped.items()
        for one in flights_at(evidence, "outside communication", where, found, outside=True)
    )
