"""What-if of ``disttrace.stats``: questions as a person writes them, answers as rows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import polars as pl

from disttrace_viewer.analysis.timing.schedule import Schedule
from disttrace_viewer.analysis.timing.what_if import KEYS, Outcome, WhatIf, Without
from disttrace_viewer.trace.errors import ViewerError
from disttrace_viewer.trace.model import Trace

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


def parse(question: str, schedule: Schedule) -> Without:
    """``rank=2`` and the like; a line by its whole path or the end of it, a group by its id, name
    or description.

    Raises:
        ViewerError: for what is no question, or names nothing that is in the trace.
    """
    found = Without()
    for part in question.split(","):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or key not in KEYS or not value:
            raise ViewerError(f"--what-if {question}: not understood; it takes {FORM}")
        found = replace(found, **{key: _known(key, value, schedule)})
    if found.group is not None and found != Without(group=found.group):
        raise ViewerError(f"--what-if {question}: a group is left out by itself")
    return found


def to_dict(outcome: Outcome, trace: Trace) -> dict[str, Any]:
    """An element of ``what_if`` in ``stats --json``."""
    without = outcome.without
    keys = {key: getattr(without, key) for key in KEYS if getattr(without, key) is not None}
    if without.group is not None:
        keys["group"] = trace.groups[without.group].id
    return {
        "without": keys,
        "wall_ns": outcome.wall_ns,
        "saved_ns": outcome.saved_ns,
        "saved_share": outcome.saved_share,
    }


def frame(what_if: WhatIf, trace: Trace) -> pl.DataFrame:
    """``without wall_ns saved_ns saved_share``, largest first."""
    rows = [to_dict(outcome, trace) for outcome in what_if.best]
    for row in rows:
        row["without"] = {key: row["without"].get(key) for key in KEYS}
    return pl.DataFrame(rows, schema=ROWS)


def _known(key: str, value: str, schedule: Schedule) -> Any:
    trace = schedule.waits.exchanges.trace
    if key == "rank":
        ranks = sorted({p.rank for p in trace.processes if p.rank is not None})
        if not (value.isascii() and value.isdecimal() and int(value) in ranks):
            known = f"0 to {ranks[-1]}" if ranks else "none"
            raise ViewerError(f"--what-if rank={value}: no such rank; there are {known}")
        return int(value)
    if key == "host":
        return _one(key, value, {p.host: p.host for p in trace.processes if p.host})
    if key == "group":
        names: dict[str, Any] = {}
        for group in trace.groups:
            for name in (group.id, group.name, group.desc, "default" if group.default else None):
                if name:
                    names.setdefault(name, group.index)
        return _one(key, value, names)
    lines = schedule.known_lines
    ends = {line: line for line in lines if line == value or line.endswith(f"/{value}")}
    return _one(key, value, {value: next(iter(ends.values()))} if len(ends) == 1 else ends, lines)


def _one(key: str, value: str, known: dict[str, Any], shown: list[str] | None = None) -> Any:
    if value in known:
        return known[value]
    names = sorted(known) or shown or []
    some = ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
    why = "several end like that" if key == "line" and known else "nothing of that name"
    raise ViewerError(f"--what-if {key}={value}: {why} communicates; there are {some or 'none'}")
