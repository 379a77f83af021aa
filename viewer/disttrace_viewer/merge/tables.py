"""Stores, groups and calls of all journals, under numbers that hold across processes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import orjson

from disttrace.journal.format import UNKNOWN_OP
from disttrace_viewer.load.definitions import completed
from disttrace_viewer.load.journals import Journal
from disttrace_viewer.load.schema import Record
from disttrace_viewer.merge.processes import stack_of
from disttrace_viewer.merge.store_servers import Life, clusters, identifier
from disttrace_viewer.trace.model import Group, Member, Store
from disttrace_viewer.trace.process import Process, Stack
from disttrace_viewer.trace.values import dataclass, field, replace

if TYPE_CHECKING:
    import polars as pl

KINDS = ("collective", "message", "store", "constructor", "composed")
_TEXTS = ("backend", "device", "reduce_op", "name", "origin")
_AS_THEY_ARE = ("async", "shapes", "dtypes", "bytes", "root", "peer", "tag")


def stores_of(
    processes: Sequence[Mapping[int, Record]], places: Mapping[tuple[int, int], str]
) -> tuple[Store, ...]:
    """Every store of every process, of which come the records by number; ``places``: the place of
    each at the bottom of a chain of prefixes, by process and number.
    """
    found: list[Store] = []
    first = 0
    for process, records in enumerate(processes):
        index = dict(zip(records, range(first, first + len(records)), strict=True))
        first += len(records)
        for number, record in records.items():
            under = record.get("base", number)
            under = under if under in index else number
            place = places.get((process, under), "")
            found.append(store_of(index[number], process, number, record, index[under], place))
    return tuple(found)


def store_of(index: int, process: int, number: int, record: Record, base: int, place: str) -> Store:
    """A store of a process; ``base`` is the index of that at the bottom of its prefixes."""
    return Store(
        index,
        process,
        number,
        record.get("type") or "?",
        record.get("name") or None,
        base,
        tuple(record.get("prefix") or ()),
        record.get("host") or None,
        record.get("port"),
        record.get("server", False),
        record.get("address") or None,
        record.get("path") or None,
        place,
        record.get("connection"),
        record.get("timeout"),
    )


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
    undefined: dict[int, int] = field(default_factory=dict)
    """Calls of each process that name a group which is not defined."""
    _unknown: dict[int, int] = field(default_factory=dict)
    _completed: dict[tuple[int, int, str], int] = field(default_factory=dict)
    _signatures: dict[str, int] = field(default_factory=dict)
    _stack_numbers: dict[tuple[int, int], int | None] = field(default_factory=dict)
    _own_rank: dict[tuple[int, int], int | None] = field(default_factory=dict)

    def collect(self) -> None:
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
            definitions = self.journals[process].definitions
            record = definitions.numbered["call"].get(number) or {}
            record = completed(record, orjson.loads(override))
            found = self._completed[key] = self._add(process, record)
        return found

    def table(self) -> pl.DataFrame:
        import polars as pl  # here, for calls of states are read where there is none

        from disttrace_viewer.trace.columns import CALLS

        columns: dict[str, Any] = {name: [row[name] for row in self.rows] for name in CALLS}
        for name in ("shapes", "dtypes"):
            columns[name] = _lists(columns[name], CALLS[name])
        return pl.DataFrame(columns, schema=CALLS, strict=False)

    def _add(self, process: int, record: Record) -> int:
        group = self.groups.get((process, record.get("group", -1)))
        if group is None and "group" in record:
            self.undefined[process] = self.undefined.get(process, 0) + 1
        kind = record.get("kind")
        row: dict[str, Any] = {
            "process": process,
            "op": record.get("op") or UNKNOWN_OP,
            "kind": kind if kind in KINDS else "unknown",
            "group": group,
            "group_rank": None if group is None else self._own_rank.get((process, group)),
            "splits": _json(record.get("splits")),
            "store": self.stores.get((process, record.get("store", -1))),
            "stack": self._stack(process, record.get("stack")),
            "args": _json(record.get("args")),
        }
        row.update((name, record.get(name) or None) for name in _TEXTS)
        row.update((name, record.get(name)) for name in _AS_THEY_ARE)
        text = repr([row[n] for n in ("op", "root", "dtypes", "shapes", "splits", "reduce_op")])
        row["signature"] = self._signatures.setdefault(text, len(self._signatures))
        self.rows.append(row)
        return len(self.rows) - 1

    def _stack(self, process: int, number: int | None) -> int | None:
        if number is None:
            return None
        key = (process, number)
        if key not in self._stack_numbers:
            stack = stack_of(self.journals[process], number)
            self._stack_numbers[key] = (
                self.stacks.setdefault(stack, len(self.stacks)) if stack else None
            )
        return self._stack_numbers[key]


def _lists(values: Sequence[Any], dtype: pl.DataType) -> pl.Series:
    """Lists as a column, each made once: polars looks long at each, and ranks share them."""
    import polars as pl

    known: dict[str, int] = {}
    distinct: list[Any] = []
    places: list[int] = []
    for value in values:
        place = known.setdefault(repr(value), len(distinct))
        if place == len(distinct):
            distinct.append(value)
        places.append(place)
    made = pl.Series(distinct, dtype=dtype, strict=False)
    return made.gather(pl.Series(places, dtype=pl.UInt32))


def _json(value: object) -> str | None:
    return None if value is None else orjson.dumps(value).decode()


@dataclass(frozen=True, slots=True)
class Seen:
    """A group as one process defined it."""

    process: int
    number: int
    name: str
    desc: str | None
    type: str | None
    backends: Mapping[str, str]
    ranks: tuple[int, ...] | None
    rank: int | None
    size: int | None
    base: int | None
    """The store at the bottom of the chain of prefixes of its own, as ``places`` have it."""
    prefix: tuple[str | None, ...]
    nth: int | None
    default: bool
    t_ns: int | None
    timeout_ns: int | None = None
    partial: bool = False


def merge_groups(
    places: Mapping[int, str],
    seen: Iterable[Seen],
    circles: Sequence[int],
    lives: Sequence[Life],
) -> tuple[tuple[Group, ...], dict[tuple[int, int], int], list[tuple[int, int]]]:
    """The groups, still without ids; for every (process, number) the index of its group; and of
    each group the (process, number) whose word is taken for what it is.

    Two definitions are one group when they met in the same place under the same full prefix, are
    the n-th there for both, and have the same members. Where the store or a prefix is unknown,
    name, members and time decide within a ``circle`` (processes that met or descend from one
    another), the k-th of one process being the k-th of the other.
    """
    buckets: dict[Hashable, list[Seen]] = {}
    count: dict[Hashable, int] = {}
    for item in seen:
        if item.base is not None and None not in item.prefix:
            key: Hashable = ("met", places.get(item.base, ""), item.prefix, item.nth)
        else:
            named = (item.process, item.name, item.ranks or item.size)
            count[named] = count.get(named, 0) + 1
            key = ("named", circles[item.process], item.name, count[named])
        buckets.setdefault(key, []).append(item)
    groups: list[Group] = []
    firsts: list[tuple[int, int]] = []
    index: dict[tuple[int, int], int] = {}
    for key in list(buckets):  # each is given up when it is merged: there may be a million
        bucket = buckets.pop(key)
        for alike in _by_members(bucket):
            for together in clusters(alike, lambda s: lives[s.process]):
                group, first = _group(len(groups), together, places)
                groups.append(group)
                firsts.append((first.process, first.number))
                index.update(((s.process, s.number), group.index) for s in together)
    return tuple(groups), index, firsts


def named(
    groups: Sequence[Group], processes: Sequence[Process], ids: Sequence[str]
) -> tuple[Group, ...]:
    """The groups with their ids: those that a member gives it by itself, as OTLP names it. Where
    groups that are read together share one, since they met at one port after one another or on
    hosts that know nothing of each other, each gets a suffix of its own.
    """
    shared = Counter(ids)
    found = (replace(group, id=one) for group, one in zip(groups, ids, strict=True))
    return tuple(_unique(g, processes) if shared[g.id] > 1 else g for g in found)


Copies = frozenset[tuple[int, int]]
"""Processes and groups that they inherited."""


def without_copies(
    groups: Sequence[Group], processes: Sequence[Process]
) -> tuple[tuple[Group, ...], Copies]:
    """The groups without forked children: what a child has of its parent's groups are copies, and
    neither the others nor a backend's threads know of them. And who has such a copy of which.
    """
    by_id = {process.id: process.index for process in processes}
    parents = {
        process.index: by_id[process.parent]
        for process in processes
        if process.role == "child" and process.parent in by_id
    }
    found: list[Group] = []
    copies = set()
    for group in groups if parents else ():
        bearers = {(member.process, member.rank) for member in group.members}
        kept = tuple(m for m in group.members if (parents.get(m.process), m.rank) not in bearers)
        copies |= {(m.process, group.index) for m in {*group.members} - {*kept}}
        found.append(group if len(kept) == len(group.members) else replace(group, members=kept))
    return tuple(found) if parents else tuple(groups), frozenset(copies)


def _unique(group: Group, processes: Sequence[Process]) -> Group:
    first = min((processes[member.process].id, member.number) for member in group.members)
    return replace(group, id=f"{group.id}-{identifier(*first)[:6]}")


def _by_members(bucket: Sequence[Seen]) -> list[list[Seen]]:
    """Split by members; who does not know the global ranks goes with the only ones of that size."""
    found: dict[Hashable, list[Seen]] = {}
    alike: dict[int, list[Seen]] = {}
    for item in bucket:
        if item.ranks is not None:
            # Equal lists mostly are one object; a tuple works out its hash each time.
            alike.setdefault(id(item.ranks), []).append(item)
    for items in alike.values():
        found.setdefault(items[0].ranks, []).extend(items)
    for item in bucket:
        if item.ranks is None:
            sized = [k for k in found if isinstance(k, tuple) and len(k) == item.size]
            found.setdefault(sized[0] if len(sized) == 1 else item.size, []).append(item)
    return list(found.values())


def _group(index: int, seen: Sequence[Seen], places: Mapping[int, str]) -> tuple[Group, Seen]:
    first = next((s for s in seen if s.ranks is not None), seen[0])
    ordered = sorted(seen, key=lambda s: (s.rank is None, s.rank or 0, s.process))
    group = Group(
        id="", index=index, name=first.name, desc=first.desc, type=first.type,
        backends=first.backends, ranks=first.ranks, size=first.size,
        default=any(s.default for s in seen),
        place=None if first.base is None else places.get(first.base, ""),
        prefix=first.prefix,
        members=tuple(Member(s.process, s.number, s.rank, s.t_ns, s.desc) for s in ordered),
        timeout_ns=next((s.timeout_ns for s in seen if s.timeout_ns), None),
        partial=any(s.partial for s in seen),
    )  # fmt: skip
    return group, first
