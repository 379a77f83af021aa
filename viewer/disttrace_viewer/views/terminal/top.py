"""What every process does at this moment, and who waits for whom: the values behind ``top``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import polars as pl

from disttrace_viewer.analysis.exchanges import Exchanges
from disttrace_viewer.analysis.thread_stacks import standings
from disttrace_viewer.trace.columns import IN_FLIGHT
from disttrace_viewer.trace.model import Process, Standing, Trace
from disttrace_viewer.views.terminal import in_flight
from disttrace_viewer.wording.names import Names, names_of, place
from disttrace_viewer.wording.operations import Describer

WINDOW_NS = 5_000_000_000
"""Rates are of the newest five seconds."""
WAITS = 20


@dataclass(frozen=True, slots=True)
class Now:
    """One process at the moment of the snapshot."""

    process: int
    name: str
    role: str
    state: str
    doing: str
    """The innermost operation in flight; empty outside communication."""
    age_ns: int | None
    place: str | None
    ops_per_s: float | None
    bytes_per_s: float | None
    sign_ns: int
    """Since the last sign of life."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Some wait for others in one exchange; nobody is named where that is not known."""

    waiting: tuple[int, ...]
    missing: tuple[str, ...]
    what: str
    age_ns: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All processes, in the order of their lanes."""

    at_ns: int
    live: bool
    """Somebody still runs here."""
    waits: tuple[Wait, ...]
    processes: tuple[Now, ...]
    problems: int


def snapshot_of(trace: Trace) -> Snapshot:
    """The snapshot at the time of reading, or at the newest record if nobody runs any more."""
    names = names_of(trace)
    states = {p.index: in_flight.state(p) for p in trace.processes}
    live = "running" in states.values()
    at = trace.read_ns if live else trace.end_ns
    current = _current(trace)
    rates = _rates(trace, at)
    describer = Describer(trace, names)
    stands = standings(trace) if live else {}
    found = [
        _now(
            p,
            states[p.index],
            current.get(p.index),
            rates.get(p.index),
            stands.get(p.index),
            describer,
            at,
        )
        for p in sorted(trace.processes, key=lambda p: _order(p, names))
    ]
    return Snapshot(at, live, _waits(trace, names, describer), tuple(found), len(trace.problems))


def _order(process: Process, names: Names) -> tuple[str, bool, int, int]:
    letter = names.letters.get(process.job, "")
    return letter, process.rank is None, process.rank or 0, process.index


def _current(trace: Trace) -> Mapping[int, Mapping[str, object]]:
    """Per process its innermost operation in flight that is oldest."""
    pending = trace.operations.filter(IN_FLIGHT & ~pl.col("lost"))
    outer = pending.select("process", pl.col("parent").alias("number")).drop_nulls()
    inner = pending.join(outer, on=["process", "number"], how="anti", maintain_order="left")
    waited = pl.col("wait_begin_ns").is_null() & pl.col("issued_ns").is_not_null()
    # What was issued and nobody waits for yet does not hold a process up.
    inner = inner.sort(waited, "begin_ns", maintain_order=True)
    first = inner.unique("process", keep="first", maintain_order=True)
    return {row["process"]: row for row in first.iter_rows(named=True)}


def _rates(trace: Trace, at: int) -> Mapping[int, tuple[float, float]]:
    sizes = trace.calls.select(pl.col("bytes").alias("_bytes")).with_row_index("call")
    recent = trace.operations.lazy().filter(pl.col("begin_ns") > at - WINDOW_NS)
    counted = (
        recent.join(sizes.lazy(), on="call", how="left")
        .group_by("process")
        .agg(pl.len(), pl.coalesce("bytes", "_bytes").sum().alias("bytes"))
        .collect()
    )
    seconds = WINDOW_NS / 1e9
    return {process: (n / seconds, size / seconds) for process, n, size in counted.iter_rows()}


def _now(
    process: Process,
    state: str,
    row: Mapping[str, object] | None,
    rate: tuple[float, float] | None,
    stands: Standing | None,
    describer: Describer,
    at: int,
) -> Now:
    trace = describer.trace
    running = state == "running"
    doing, age, where = "", None, None
    if row is not None and state != "ended":
        call, begin = int(str(row["call"])), int(str(row["begin_ns"]))
        doing, where = describer.title(row), place(trace.stack(call))
        age = max(0, in_flight.until_ns(process, trace) - begin)
    elif running and stands is not None:
        where = in_flight.user_place(stands.stack)
    ops, size = rate or (0.0, 0.0)
    return Now(
        process=process.index,
        name=describer.names.process(process.index),
        role=process.role,
        state=state,
        doing=doing,
        age_ns=age,
        place=where,
        ops_per_s=ops if running else None,
        bytes_per_s=size if running else None,
        sign_ns=max(0, at - process.last_ns),
    )


def _waits(trace: Trace, names: Names, describer: Describer) -> tuple[Wait, ...]:
    exchanges = Exchanges(trace)
    found = [
        *_in_collectives(trace, names, exchanges),
        *_in_messages(trace, names, exchanges),
        *_for_keys(trace, exchanges),
    ]
    return tuple(sorted(found, key=lambda w: -w.age_ns)[:WAITS])


def _in_collectives(trace: Trace, names: Names, exchanges: Exchanges) -> list[Wait]:
    pending = exchanges.collectives.filter(
        pl.col("pending") & (pl.col("arrived") < pl.col("expected"))
    ).head(WAITS)
    members = exchanges.participants(pending["exchange"])
    found = []
    for row in pending.iter_rows(named=True):
        came = members.filter(pl.col("exchange") == row["exchange"])
        waiting = came.filter(IN_FLIGHT)["process"].to_list()
        here = set(came["group_rank"].to_list())
        size = trace.groups[row["group"]].size or 0
        missing = tuple(names.member(row["group"], r) for r in range(size) if r not in here)
        call = trace.call(row["call"])
        what = f"{call.op} #{row['seq']} in {names.group(row['group'])}"
        until = max(in_flight.until_ns(trace.processes[p], trace) for p in waiting)
        found.append(Wait(tuple(waiting), missing, what, until - row["first_ns"]))
    return found


def _in_messages(trace: Trace, names: Names, exchanges: Exchanges) -> list[Wait]:
    found = []
    for side, other, peer in (("recv", "send", "source"), ("send", "recv", "destination")):
        alone = exchanges.messages.filter(
            pl.col(f"{side}_process").is_not_null()
            & pl.col(f"{other}_process").is_null()
            & pl.col(f"{side}_end_ns").is_null()
            & pl.col(f"{side}_error").is_null()
        ).head(WAITS)
        for row in alone.iter_rows(named=True):
            process = row[f"{side}_process"]
            age = in_flight.until_ns(trace.processes[process], trace) - row[f"{side}_begin_ns"]
            who = names.member(row["group"], row[peer])
            found.append(Wait((process,), (who,), f"{side} #{row['seq']}", age))
    return found


def _for_keys(trace: Trace, exchanges: Exchanges) -> list[Wait]:
    """Keys that processes wait for; who should set them is not guessed here."""
    waiting = exchanges.key_events.filter((pl.col("part") == "wait") & IN_FLIGHT).head(WAITS)
    return [
        Wait(
            (row["process"],),
            (),
            f"{row['op']} {row['key']}",
            in_flight.until_ns(trace.processes[row["process"]], trace) - row["begin_ns"],
        )
        for row in waiting.iter_rows(named=True)
    ]
