"""Puts all processes on one time line: monotonic clocks of a boot become unix time."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TypeVar

from disttrace_viewer.trace.model import Group, Member, Tables, Trace
from disttrace_viewer.trace.process import (
    Clock,
    Digest,
    Exit,
    Failure,
    Process,
    Sighting,
    StackSample,
    Trouble,
    Worker,
)

T = TypeVar("T", Digest, Exit, Failure, Sighting, Trouble, Worker)
UNKNOWN_NS = 1 << 62
"""Error of a clock of which no journal has a reading: of a process without definitions."""


def to_unix(clock: Clock, monotonic_ns: int) -> int:
    """Unix time of a monotonic reading."""
    drifted = round((monotonic_ns - clock.origin_ns) * clock.drift) if clock.drift else 0
    return monotonic_ns + clock.offset_ns - drifted


def realign(trace: Trace, clocks: tuple[Clock, ...]) -> Trace:
    """The same trace under other clocks (same order and length as ``trace.clocks``).

    ``trace`` must be as it was loaded: without drift.
    """
    import polars as pl  # here, for clocks of states are read where there is none

    from disttrace_viewer.trace.columns import TIMES

    of_process = [p.clock for p in trace.processes]
    changed = [new != old for new, old in zip(clocks, trace.clocks, strict=True)]
    if not any(changed):
        return trace
    table = pl.DataFrame(
        {
            "process": pl.Series(range(len(of_process)), dtype=pl.UInt32),
            "old": [trace.clocks[c].offset_ns for c in of_process],
            "new": [clocks[c].offset_ns for c in of_process],
            "origin": [clocks[c].origin_ns for c in of_process],
            "drift": [clocks[c].drift for c in of_process],
        }
    )
    moved = trace.operations.lazy().join(table.lazy(), on="process", maintain_order="left")
    monotonic = {name: pl.col(name) - pl.col("old") for name in TIMES}
    moved = moved.with_columns(
        (
            m + pl.col("new") - ((m - pl.col("origin")) * pl.col("drift")).round().cast(pl.Int64)
        ).alias(name)
        for name, m in monotonic.items()
    )
    operations = (
        moved.select(trace.operations.columns).sort("begin_ns", "process", "number").collect()
    )
    processes, groups = moved_definitions(trace.processes, trace.groups, trace.clocks, clocks)
    tables = Tables(operations, trace.calls, trace.completions)
    return trace.replace(tables=tables, processes=processes, groups=groups, clocks=clocks)


def moved_definitions(
    processes: Sequence[Process],
    groups: Sequence[Group],
    was: Sequence[Clock],
    clocks: Sequence[Clock],
) -> tuple[tuple[Process, ...], tuple[Group, ...]]:
    """Processes and groups with all their times under other clocks."""
    changed = [new != old for new, old in zip(clocks, was, strict=True)]

    def member(one: Member) -> Member:
        clock = processes[one.process].clock
        if one.t_ns is None or not changed[clock]:
            return one
        t_ns = to_unix(clocks[clock], one.t_ns - was[clock].offset_ns)
        return dataclasses.replace(one, t_ns=t_ns)

    return tuple(
        _moved(p, was[p.clock], clocks[p.clock]) if changed[p.clock] else p for p in processes
    ), tuple(dataclasses.replace(g, members=tuple(map(member, g.members))) for g in groups)


def _moved(process: Process, old: Clock, new: Clock) -> Process:
    """A process with all its times under another clock."""

    def at(ns: int) -> int:
        return to_unix(new, ns - old.offset_ns)

    def maybe(ns: int | None) -> int | None:
        return None if ns is None else at(ns)

    def each(ones: Sequence[T]) -> tuple[T, ...]:
        return tuple(dataclasses.replace(one, t_ns=at(one.t_ns)) for one in ones)

    def seen(one: StackSample) -> StackSample:
        return dataclasses.replace(one, t_ns=at(one.t_ns), first_ns=at(one.first_ns))

    return dataclasses.replace(
        process,
        start_ns=at(process.start_ns),
        last_ns=at(process.last_ns),
        heartbeat_ns=maybe(process.heartbeat_ns),
        exit=None if process.exit is None else each([process.exit])[0],
        failures=each(process.failures),
        handling=each(process.handling),
        latest_samples={thread: seen(one) for thread, one in process.latest_samples.items()},
        samples=tuple(map(seen, process.samples)),
        workers=each(process.workers),
        told=None if process.told is None else each([process.told])[0],
        sightings=each(process.sightings),
        troubles=each(process.troubles),
        digests=each(process.digests),
        dropped=tuple(dataclasses.replace(d, to_ns=maybe(d.to_ns)) for d in process.dropped),
    )
