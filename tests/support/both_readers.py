"""Every operation of some journals as each of the two readers knows it, under one set of names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from disttrace.journal.format import UNKNOWN_OP
from disttrace_viewer.load.fates import completed_at
from disttrace_viewer.merge.reader import load
from disttrace_viewer.otlp.journal import JournalReader, LiveOperation
from disttrace_viewer.trace.columns import STATUS

Known = dict[tuple[str, int], dict[str, Any]]
"""By (id of the process, number of the operation)."""

UNKNOWN = "unknown"
"""A span has to end, so the exporter ends a lost one where it was dropped; a table need not."""

_OF_CALL = (
    *("op", "kind", "backend", "device", "async", "dtypes", "shapes", "splits"),
    *("reduce_op", "root", "tag", "name", "origin"),
)


def batch(folder: Path) -> Known:
    """As ``load`` reads whole files."""
    trace = load([str(folder)])
    extra = {
        (p, n): device
        for p, n, device in trace.completions.select("process", "number", "device_ns").iter_rows()
    }
    found: Known = {}
    for row in trace.operations.with_columns(STATUS).iter_rows(named=True):
        call = trace.calls.row(row["call"], named=True)
        one = trace.call(row["call"])
        process = trace.processes[row["process"]]
        group = None if one.group is None else trace.groups[one.group]
        begin = row["begin_ns"]
        unseen = row["lost"] and row["complete_ns"] is None

        def after(name: str, row: dict[str, Any] = row, begin: int = begin) -> int | None:
            return None if row[name] is None else row[name] - begin

        found[process.id, row["number"]] = {
            **{name: call[name] for name in _OF_CALL},
            "splits": one.signature.splits, "args": dict(one.args),
            "group": None if group is None else group.id, "group_rank": one.group_rank,
            "stack": [tuple(frame) for frame in trace.call(row["call"]).stack],
            "begin": begin - process.t0 - trace.clocks[process.clock].offset_ns,
            "issued": after("issued_ns"), "waited": after("wait_begin_ns"),
            "completed": after("complete_ns"), "end": UNKNOWN if unseen else after("end_ns"),
            "thread": row["thread"], "parent": row["parent"], "seq": row["seq"],
            "key": trace.full_key(row["call"], row["key"]),
            "peer": one.peer if row["source"] is None else row["source"],
            "error": None if row["error"] is None else trace.errors[row["error"]],
            "status": UNKNOWN if unseen else row["status"],
            "bytes": one.bytes if row["bytes"] is None else row["bytes"],
            "raised_on_issue": row["refused"],
            "unobserved": unseen,
            "device_ns": extra.get((row["process"], row["number"])),
        }  # fmt: skip
    return found


def streaming(folder: Path) -> Known:
    """As the exporter follows files, first while they may grow, then once their process is gone."""
    found: Known = {}
    for path in sorted(folder.rglob("*.defs.jsonl")):
        reader = JournalReader(str(path.parent), path.name.removesuffix(".defs.jsonl"))
        over = [*reader.poll(), *reader.poll(final=True)]
        for op in (*over, *reader.in_flight.values()):
            found[reader.definitions.id, op.number] = _streamed(reader, op)
        reader.close()
    return found


def _streamed(reader: JournalReader, op: LiveOperation) -> dict[str, Any]:
    definitions = reader.definitions
    call = op.call
    group = call.get("group")
    return {
        **{name: call.get(name) for name in _OF_CALL},
        "op": call.get("op") or UNKNOWN_OP,
        "kind": call.get("kind") or "unknown",
        "args": call.get("args") or {},
        "group": None if group is None else definitions.group_id(group),
        "group_rank": (definitions.get("group", group) or {}).get("rank"),
        "stack": definitions.frames(call.get("stack")),
        "begin": op.begin, "issued": op.record.get("issued"), "waited": op.record.get("wait"),
        "completed": completed_at(op.record), "end": UNKNOWN if op.unobserved else op.end,
        "thread": op.record.get("h", 0),
        "parent": None if op.parent is None else op.parent.number,
        "seq": op.seq,
        "key": definitions.full_key(call.get("store"), op.record.get("k")),
        "peer": op.peer,
        "error": op.error,
        "status": UNKNOWN if op.unobserved else op.status,
        "bytes": op.bytes,
        "raised_on_issue": op.raised_on_issue,
        "unobserved": op.unobserved,
        "device_ns": op.record.get("z"),
    }  # fmt: skip


def differences(one: Known, other: Known) -> list[str]:
    """What they say differently, a line for each operation and field."""
    found = [f"only one has {key}" for key in one.keys() ^ other.keys()]
    return found + [
        f"{key} {name}: {one[key][name]!r} / {other[key][name]!r}"
        for key in sorted(one.keys() & other.keys())
        for name in one[key]
        if one[key][name] != other[key][name]
    ]
