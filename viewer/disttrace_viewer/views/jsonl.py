"""One JSON object per operation, ordered by begin: the export that other tools read.

The fields and their meaning are a contract (``docs/export-jsonl.md``); every key is always there,
null where it does not apply.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import orjson
import polars as pl

from disttrace_viewer.columns import STATUS, WAIT_END
from disttrace_viewer.model import Trace

FIELDS = (
    "id",
    "parent",
    "job",
    "process",
    "role",
    "host",
    "pid",
    "attempt",
    "thread",
    "rank",
    "local_rank",
    "op",
    "group",
    "group_name",
    "group_ranks",
    "group_rank",
    "backend",
    "device",
    "seq",
    "begin_ns",
    "issued_ns",
    "wait_begin_ns",
    "wait_end_ns",
    "complete_ns",
    "end_ns",
    "status",
    "error",
    "async",
    "bytes",
    "shapes",
    "dtypes",
    "splits",
    "reduce_op",
    "root",
    "root_group_rank",
    "peer",
    "peer_group_rank",
    "tag",
    "key",
    "store",
    "name",
    "origin",
    "stack",
    "args",
)

CHUNK_ROWS = 50_000

_OWN = (
    "seq",
    "begin_ns",
    "issued_ns",
    "wait_begin_ns",
    "wait_end_ns",
    "complete_ns",
    "end_ns",
    "status",
    "thread",
)
"""Columns that go into the object as they are."""


def lines(trace: Trace) -> Iterator[bytes]:
    """The export in pieces of whole lines, so that it never has to be in memory at once."""
    templates = _Templates(trace)
    table = trace.operations.with_columns(STATUS, WAIT_END)
    for chunk in table.iter_slices(CHUNK_ROWS):
        yield b"".join(_chunk(trace, chunk, templates))


def rows(trace: Trace, operations: pl.DataFrame) -> Iterator[dict[str, Any]]:
    """The objects of some rows of the operations table."""
    templates = _Templates(trace)
    for row in operations.with_columns(STATUS, WAIT_END).iter_rows(named=True):
        yield _object(trace, row, templates)


def _chunk(trace: Trace, chunk: pl.DataFrame, templates: _Templates) -> Iterator[bytes]:
    for row in chunk.iter_rows(named=True):
        yield orjson.dumps(_object(trace, row, templates), option=orjson.OPT_APPEND_NEWLINE)


def _object(trace: Trace, row: dict[str, Any], templates: _Templates) -> dict[str, Any]:
    process, call = row["process"], row["call"]
    found = templates.of(call, process).copy()
    for name in _OWN:
        found[name] = row[name]
    prefix = templates.prefixes[process]
    found["id"] = f"{prefix}{row['number']}"
    if row["parent"] is not None:
        found["parent"] = f"{prefix}{row['parent']}"
    if row["error"] is not None:
        found["error"] = trace.errors[row["error"]]
    if row["bytes"] is not None:
        found["bytes"] = row["bytes"]
    if row["key"] is not None:
        found["key"] = trace.full_key(call, row["key"])
    if row["source"] is not None:
        found["peer_group_rank"] = row["source"]
        group = trace.call(call).group
        found["peer"] = None if group is None else trace.groups[group].global_rank(row["source"])
    return found


class _Templates:
    """The part of the object that all operations of a call share, with the keys in order."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self.prefixes = [f"{short}." for short in trace.short_ids]
        self.of = cache(self._build)

    def _build(self, number: int, process: int) -> dict[str, Any]:
        trace = self._trace
        owner, call = trace.processes[process], trace.call(number)
        group = None if call.group is None else trace.groups[call.group]
        own = next((m.rank for m in group.members if m.process == process), None) if group else None
        store = None if call.store is None else trace.stores[call.store]
        found: dict[str, Any] = dict.fromkeys(FIELDS)
        found.update(
            {
                "job": owner.job,
                "process": owner.id,
                "role": owner.role,
                "host": owner.host,
                "pid": owner.pid,
                "attempt": owner.attempt,
                "rank": owner.rank,
                "local_rank": owner.local_rank,
                "op": call.op,
                "group": group.id if group else None,
                "group_name": group.name if group else None,
                "group_ranks": group.ranks if group else None,
                "group_rank": own,
                "backend": call.backend,
                "device": call.device,
                "async": call.asynchronous,
                "bytes": call.bytes,
                "shapes": call.shapes,
                "dtypes": call.dtypes,
                "splits": call.splits,
                "reduce_op": call.reduce_op,
                "root": group.global_rank(call.root) if group else None,
                "root_group_rank": call.root,
                "peer": group.global_rank(call.peer) if group else None,
                "peer_group_rank": call.peer,
                "tag": call.tag,
                "store": store.name if store else None,
                "name": call.name,
                "origin": call.origin,
                "stack": [list(frame) for frame in (trace.stack(number))],
                "args": call.args,
            }
        )
        return found
