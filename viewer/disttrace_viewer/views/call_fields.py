"""The fields of an operation: the one table that jsonl, tables, the timeline and the API read.

Names and meaning are a contract, and so is the order of those in ``FIELDS``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import polars as pl

from disttrace_viewer.analysis.sample import innermost
from disttrace_viewer.trace.model import Call, Group, Store, Trace
from disttrace_viewer.trace.process import Process

FRAME = pl.Struct({"file": pl.String(), "line": pl.Int64(), "function": pl.String()})
_RANKS = pl.List(pl.Int64())


class _Context(NamedTuple):
    """A call and what it refers to."""

    trace: Trace
    call: Call
    owner: Process
    group: Group | None
    store: Store | None

    def rank(self, group_rank: int | None) -> int | None:
        """The global rank, None where there is none."""
        return None if self.group is None else self.group.global_rank(group_rank)


@dataclass(frozen=True, slots=True)
class Field:
    """``type`` in tables; ``of`` a call, None for what belongs to an operation alone."""

    type: pl.DataType
    of: Callable[[_Context], Any] | None = None
    varies: bool = False
    """Whether operations of one call differ in it, as they do where there is no ``of``."""


def _owner(name: str) -> Callable[[_Context], Any]:
    return lambda c: getattr(c.owner, name)


def _call(name: str) -> Callable[[_Context], Any]:
    return lambda c: getattr(c.call, name)


def _group(name: str) -> Callable[[_Context], Any]:
    return lambda c: None if c.group is None else getattr(c.group, name)


FIELDS: Mapping[str, Field] = {
    "id": Field(pl.String()),
    "parent": Field(pl.String()),
    "job": Field(pl.String(), _owner("job")),
    "process": Field(pl.String(), _owner("id")),
    "role": Field(pl.String(), _owner("role")),
    "host": Field(pl.String(), _owner("host")),
    "pid": Field(pl.Int64(), _owner("pid")),
    "attempt": Field(pl.Int64(), _owner("attempt")),
    "thread": Field(pl.Int64()),
    "rank": Field(pl.Int64(), _owner("rank")),
    "local_rank": Field(pl.Int64(), _owner("local_rank")),
    "op": Field(pl.String(), _call("op")),
    "group": Field(pl.String(), _group("id")),
    "group_name": Field(pl.String(), _group("name")),
    "group_ranks": Field(_RANKS, _group("ranks")),
    "group_rank": Field(pl.Int64(), _call("group_rank")),
    "backend": Field(pl.String(), _call("backend")),
    "device": Field(pl.String(), _call("device")),
    "seq": Field(pl.Int64()),
    "begin_ns": Field(pl.Int64()),
    "issued_ns": Field(pl.Int64()),
    "wait_begin_ns": Field(pl.Int64()),
    "wait_end_ns": Field(pl.Int64()),
    "complete_ns": Field(pl.Int64()),
    "end_ns": Field(pl.Int64()),
    "status": Field(pl.String()),
    "error": Field(pl.String()),
    "async": Field(pl.Boolean(), _call("asynchronous")),
    "bytes": Field(pl.Int64(), _call("bytes"), varies=True),
    "shapes": Field(pl.List(_RANKS), _call("shapes")),
    "dtypes": Field(pl.List(pl.String()), _call("dtypes")),
    "splits": Field(pl.String(), _call("splits")),  # in tables: JSON text
    "reduce_op": Field(pl.String(), _call("reduce_op")),
    "root": Field(pl.Int64(), lambda c: c.rank(c.call.root)),
    "root_group_rank": Field(pl.Int64(), _call("root")),
    "peer": Field(pl.Int64(), lambda c: c.rank(c.call.peer), varies=True),
    "peer_group_rank": Field(pl.Int64(), _call("peer"), varies=True),
    "tag": Field(pl.Int64(), _call("tag")),
    "key": Field(pl.String()),  # in tables, of an operation on several keys: a JSON list as text
    "store": Field(pl.String(), lambda c: None if c.store is None else c.store.name),
    "name": Field(pl.String(), _call("name")),
    "origin": Field(pl.String(), _call("origin")),
    "stack": Field(pl.List(FRAME), lambda c: [list(f) for f in c.trace.stack(c.call.index)]),
    "args": Field(pl.String(), _call("args")),  # in tables: JSON object as text
}
"""What every export has, in its order."""

FURTHER: Mapping[str, Field] = {
    "kind": Field(pl.String(), _call("kind")),
    "number": Field(pl.Int64()),
    "group_desc": Field(pl.String(), _group("desc")),
    "duration_ns": Field(pl.Int64()),
    "line": Field(pl.String()),  # file:line of the user's frame
    "place": Field(pl.String()),  # id of the store server
}
"""What tables have beside it where it is chosen by name."""

_ALL = {**FIELDS, **FURTHER}
VARYING = frozenset(name for name, field in FIELDS.items() if field.varies or field.of is None)
_ON_A_SLICE = (
    "op",
    "name",
    "kind",
    "group_name",
    *("group_ranks", "backend", "device", "async", "bytes", "shapes", "dtypes", "splits"),
    *("reduce_op", "root", "peer", "tag", "store", "origin", "args", "stack"),
)


def values(trace: Trace, number: int, names: tuple[str, ...]) -> dict[str, Any]:
    """Some fields of a call, None for one that does not apply."""
    call = trace.call(number)
    context = _Context(
        trace,
        call,
        trace.processes[call.process],
        trace.group_of(call),
        trace.store_of(call),
    )
    return {name: of(context) for name in names if (of := _ALL[name].of) is not None}


def shared(trace: Trace, number: int) -> dict[str, Any]:
    """What a timeline has once per call: ``group`` is its name; nothing that does not apply."""
    found = values(trace, number, _ON_A_SLICE)
    found["args"] = found["args"] or None
    return {
        "group" if name == "group_name" else name: value
        for name, value in found.items()
        if value is not None
    }


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
