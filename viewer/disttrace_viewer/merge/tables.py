"""Stores, groups and calls of all journals, under numbers that hold across processes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson
import polars as pl

from disttrace_viewer.load.journals import Journal
from disttrace_viewer.merge.clock import to_unix
from disttrace_viewer.merge.groups import Seen
from disttrace_viewer.merge.processes import stack_of
from disttrace_viewer.trace.columns import CALLS
from disttrace_viewer.trace.model import Clock, Group, Process, Stack, Store

KINDS = ("collective", "message", "store", "constructor", "composed")
_TEXTS = ("backend", "device", "reduce_op", "name", "origin")
_NUMBERS = ("bytes", "root", "peer", "tag")


def stores_of(journals: Sequence[Journal]) -> tuple[Store, ...]:
    """Every store of every process; ``place`` is still to be found."""
    found: list[Store] = []
    for process, journal in enumerate(journals):
        records = journal.definitions.numbered["store"]
        index = {n: len(found) + i for i, n in enumerate(records)}
        for number, record in records.items():
            prefix = record.get("prefix")
            base = _int(record.get("base"))
            port = record.get("port")
            found.append(
                Store(
                    index=index[number],
                    process=process,
                    number=number,
                    type=str(record.get("type") or "?"),
                    name=_text(record.get("name")),
                    base=index.get(base, index[number]) if base is not None else index[number],
                    prefix=_prefix(prefix),
                    host=_text(record.get("host")),
                    port=port if isinstance(port, int) else None,
                    server=bool(record.get("server")),
                    address=_text(record.get("address")),
                    path=_text(record.get("path")),
                    place="",
                )
            )
    return tuple(found)


def seen_groups(
    journals: Sequence[Journal],
    processes: Sequence[Process],
    clocks: Sequence[Clock],
    stores: Sequence[Store],
) -> list[Seen]:
    """Every group as every process defined it."""

    def unix(process: int, t: int | None) -> int | None:
        where = processes[process]
        return None if t is None else to_unix(clocks[where.clock], where.t0 + t)

    index = {(s.process, s.number): s.index for s in stores}
    return [
        Seen(
            process=process,
            number=number,
            name=str(record.get("name") or ""),
            desc=_text(record.get("desc")),
            type=_text(record.get("type")),
            backends=_backends(record.get("backends")),
            ranks=_ints(record.get("ranks")),
            rank=_int(record.get("rank")),
            size=_int(record.get("size")),
            store=index.get((process, _int(record.get("store")) or -1)),
            nth=_int(record.get("nth")),
            default=bool(record.get("default")),
            t_ns=unix(process, _int(record.get("t"))),
        )
        for process, journal in enumerate(journals)
        for number, record in journal.definitions.numbered["group"].items()
    ]


@dataclass(slots=True)
class Calls:
    """The calls of all processes while they are collected, and what they refer to."""

    journals: Sequence[Journal]
    stores: Mapping[tuple[int, int], int]
    """Index of a store by (process, number)."""
    groups: Mapping[tuple[int, int], int]
    group_values: Sequence[Group]
    stacks: dict[Stack, int] = field(default_factory=dict)
    rows: list[dict[str, Any]] = field(default_factory=list)
    index: dict[tuple[int, int], int] = field(default_factory=dict)
    """Row of a call by (process, number)."""
    _unknown: dict[int, int] = field(default_factory=dict)
    _completed: dict[tuple[int, int, str], int] = field(default_factory=dict)
    _signatures: dict[str, int] = field(default_factory=dict)
    _stack_numbers: dict[tuple[int, int], int | None] = field(default_factory=dict)
    _own_rank: dict[tuple[int, int], int | None] = field(default_factory=dict)

    def collect(self) -> None:
        """All calls that definitions tell of."""
        for group in self.group_values:
            for member in group.members:
                self._own_rank[member.process, group.index] = member.rank
        for process, journal in enumerate(self.journals):
            for number, record in journal.definitions.numbered["call"].items():
                self.index[process, number] = self._add(process, record)

    def unknown(self, process: int) -> int:
        """The row that stands for calls of a process that no definition describes."""
        if process not in self._unknown:
            self._unknown[process] = self._add(process, {})
        return self._unknown[process]

    def completed(self, process: int, number: int, override: str) -> int:
        """The row of a call with fields that one operation overrides (its ``a``, as JSON)."""
        key = (process, number, override)
        found = self._completed.get(key)
        if found is None:
            record = dict(self.journals[process].definitions.numbered["call"].get(number) or {})
            changes = orjson.loads(override)
            if isinstance(changes.get("args"), dict) and isinstance(record.get("args"), dict):
                changes["args"] = {**record["args"], **changes["args"]}
            found = self._completed[key] = self._add(process, {**record, **changes})
        return found

    def table(self) -> pl.DataFrame:
        """The rows as the calls table."""
        columns = {name: [row[name] for row in self.rows] for name in CALLS}
        return pl.DataFrame(columns, schema=CALLS, strict=False)

    def _add(self, process: int, record: Mapping[str, Any]) -> int:
        group = self.groups.get((process, _int(record.get("group")) or -1))
        kind = record.get("kind")
        row: dict[str, Any] = {
            "process": process,
            "op": str(record.get("op") or "?"),
            "kind": kind if kind in KINDS else "unknown",
            "group": group,
            "group_rank": None if group is None else self._own_rank.get((process, group)),
            "async": record["async"] if isinstance(record.get("async"), bool) else None,
            "shapes": _shapes(record.get("shapes")),
            "dtypes": _strings(record.get("dtypes")),
            "splits": _json(record.get("splits")),
            "store": self.stores.get((process, _int(record.get("store")) or -1)),
            "stack": self._stack(process, record.get("stack")),
            "args": _json(args) if isinstance(args := record.get("args"), dict) else None,
        }
        row.update((name, _text(record.get(name))) for name in _TEXTS)
        row.update((name, _int(record.get(name))) for name in _NUMBERS)
        row["signature"] = self._signature(row)
        self.rows.append(row)
        return len(self.rows) - 1

    def _signature(self, row: Mapping[str, Any]) -> int:
        names = ("op", "root", "dtypes", "shapes", "splits", "reduce_op")
        text = repr([row[name] for name in names])
        return self._signatures.setdefault(text, len(self._signatures))

    def _stack(self, process: int, number: object) -> int | None:
        if not isinstance(number, int):
            return None
        key = (process, number)
        if key not in self._stack_numbers:
            stack = stack_of(self.journals[process], number)
            self._stack_numbers[key] = (
                self.stacks.setdefault(stack, len(self.stacks)) if stack else None
            )
        return self._stack_numbers[key]


def _prefix(value: object) -> tuple[str | None, ...]:
    if not isinstance(value, list):
        return ()
    return tuple(None if part is None else str(part) for part in value)


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _int(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _ints(value: object) -> tuple[int, ...] | None:
    if isinstance(value, tuple):
        return value
    if not isinstance(value, list) or not set(map(type, value)) <= {int}:
        return None
    return tuple(value)


def _backends(value: object) -> dict[str, str]:
    return {str(k): str(v) for k, v in value.items()} if isinstance(value, dict) else {}


def _shapes(value: object) -> list[list[int]] | None:
    if not isinstance(value, list) or any(_ints(item) is None for item in value):
        return None
    return value


def _strings(value: object) -> list[str] | None:
    return [str(item) for item in value] if isinstance(value, list) else None


def _json(value: object) -> str | None:
    return None if value is None else orjson.dumps(value).decode()
