"""What calls refer to, as small tables to join: processes, groups, stores and stacks by index."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import polars as pl

from disttrace_viewer.analysis.operation import innermost
from disttrace_viewer.trace.model import Trace
from disttrace_viewer.trace.process import Process
from disttrace_viewer.views.call_fields import FRAME

Column = tuple[type[pl.DataType], Callable[[Process], Any]]
OF_PROCESS: Mapping[str, Column] = {
    "job": (pl.String, lambda p: p.job),
    "process": (pl.String, lambda p: p.id),
    "rank": (pl.Int64, lambda p: p.rank),
    "local_rank": (pl.Int64, lambda p: p.local_rank),
    "world_size": (pl.Int64, lambda p: p.world_size),
    "role": (pl.String, lambda p: p.role),
    "host": (pl.String, lambda p: p.host),
    "pid": (pl.Int64, lambda p: p.pid),
    "attempt": (pl.Int64, lambda p: p.attempt),
    "start_ns": (pl.Int64, lambda p: p.start_ns),
    "last_ns": (pl.Int64, lambda p: p.last_ns),
    "exit": (pl.String, lambda p: None if p.exit is None else p.exit.how),
    "exit_code": (pl.Int64, lambda p: None if p.exit is None else p.exit.code),
}


def columns_of(trace: Trace, columns: Mapping[str, Column]) -> pl.DataFrame:
    """One row per process, in their order."""
    return pl.DataFrame(
        {name: [of(p) for p in trace.processes] for name, (_, of) in columns.items()},
        schema={name: kind for name, (kind, _) in columns.items()},
    )


def processes_by_index(trace: Trace) -> pl.DataFrame:
    """By ``_p``, with ``_short``, the id that begins those of operations."""
    own: dict[str, Column] = {
        "_p": (pl.UInt32, lambda p: p.index),
        "_short": (pl.String, lambda p: trace.short_ids[p.index]),
    }
    names = ("job", "process", "role", "host", "pid", "attempt", "rank", "local_rank")
    return columns_of(trace, own | {name: OF_PROCESS[name] for name in names})


def group_ids(trace: Trace) -> pl.LazyFrame:
    """Ids (``_group``) by ``_g``."""
    return pl.LazyFrame(
        {"_g": [g.index for g in trace.groups], "_group": [g.id for g in trace.groups]},
        schema={"_g": pl.UInt32, "_group": pl.String},
    )


def groups_by_index(trace: Trace, need: set[str]) -> pl.DataFrame:
    """By ``_g``; members only where they are needed."""
    columns: dict[str, tuple[pl.DataType, list[object]]] = {
        "group": (pl.String(), [g.id for g in trace.groups]),
        "group_name": (pl.String(), [g.name for g in trace.groups]),
        "group_desc": (pl.String(), [g.desc for g in trace.groups]),
    }
    if "group_ranks" in need:
        ranks = [None if g.ranks is None else list(g.ranks) for g in trace.groups]
        columns["group_ranks"] = (pl.List(pl.Int64()), list(ranks))
    index = pl.Series("_g", [g.index for g in trace.groups], dtype=pl.UInt32)
    return pl.DataFrame(
        [index, *(pl.Series(name, values, dtype=kind) for name, (kind, values) in columns.items())]
    )


def stores_by_index(trace: Trace) -> pl.DataFrame:
    """Names and servers by ``_s``."""
    return pl.DataFrame(
        {
            "_s": [s.index for s in trace.stores],
            "store": [s.name for s in trace.stores],
            "place": [s.place for s in trace.stores],
        },
        schema={"_s": pl.UInt32, "store": pl.String, "place": pl.String},
    )


def stacks_by_index(trace: Trace, need: set[str]) -> pl.DataFrame:
    """By ``_k``: the line, the stack, or both."""
    index = pl.Series("_k", range(len(trace.stacks)), dtype=pl.UInt32)
    columns = [index]
    if "line" in need:
        frames = [innermost(stack) for stack in trace.stacks]
        texts = [None if one is None else f"{one.file}:{one.line}" for one in frames]
        columns.append(pl.Series("line", texts, dtype=pl.String))
    if "stack" in need:
        values = [[frame._asdict() for frame in stack] for stack in trace.stacks]
        columns.append(pl.Series("stack", values, dtype=pl.List(FRAME)))
    return pl.DataFrame(columns)
