"""The critical path: what the run's length is made of, from its end back to its begin.

It goes back through the process that was through last; where that one had waited for somebody, it
goes on with the last one to come, from its arrival (Scalasca's critical path, scalasca.org). What
lies on it, and nothing else, made the run as long as it was. Start-up, before a process's first
operation, is no part of it. Where a run did not complete it begins at the last sign of the culprit
of the findings, and without one there is none.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import polars as pl

from disttrace_viewer.analysis.timing.schedule import ALL, COMPLETION, NOBODY, Schedule

OUTSIDE, TRANSFER, INSIDE = "outside", "transfer", "inside"
"""Between operations; from the last arrival to the completion; in a call, waiting for nobody."""

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
    (then both are null); ``TRANSFER`` and ``INSIDE`` are the operation's own. Where the schedule
    holds windows of the run, their paths stand for all of it.
    """
    waits = schedule.waits
    lives = {p: (low, high) for p, low, high in waits.lives.iter_rows()}
    end = None if waits.is_complete else next(iter(waits.never), None)
    if end is None and not waits.is_complete:
        return pl.DataFrame(schema=STRETCHES)
    found: Stretches = {}
    seen: set[int] = set()
    for piece in schedule.pieces:
        events = list(map(_Event._make, piece.select(_Event._fields).iter_rows()))
        seen |= {event.process for event in events}
        _walk(events, None if schedule.is_sampled else lives, found, end)
    if schedule.is_sampled and (walked := sum(found.values())):
        wall = max(lives[p][1] for p in seen) - min(lives[p][0] for p in seen)
        found = {key: round(time * wall / walked) for key, time in found.items()}
    rows = [(*key, time) for key, time in found.items()]
    table = pl.DataFrame(rows, schema=STRETCHES, orient="row")
    return table.sort("time_ns", "process", "line", descending=[True, False, False])


def _walk(
    events: list[_Event],
    lives: Mapping[int, tuple[int, int]] | None,
    found: Stretches,
    culprit: int | None,
) -> None:
    """Add the path through events that hang together; ``lives``: from the end of the run on, or
    from that of the ``culprit``.
    """
    before, last, root = _links(events)
    newest: dict[int, int] = {event.process: place for place, event in enumerate(events)}

    def add(process: int, kind: str, op: str | None, line: str | None, time: int) -> None:
        if time > 0:
            key = (process, kind, op, line)
            found[key] = found.get(key, 0) + time

    if culprit is not None and (culprit not in newest or lives is None):
        return
    if lives is None:
        end = max(newest, key=lambda process: events[newest[process]].at_ns)
    else:
        ends = {process: lives[process][1] for process in newest}
        end = max(newest, key=ends.__getitem__) if culprit is None else culprit
        add(end, OUTSIDE, None, None, lives[end][1] - events[newest[end]].at_ns)
    place: int | None = newest[end]
    while place is not None:
        event = events[place]
        came = (last if event.needs == ALL else root).get(event.exchange)
        waited = event.event == COMPLETION and event.needs != NOBODY and came is not None
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
