"""Stores, groups and calls of all journals, under numbers that hold across processes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

import orjson

from disttrace.journal.format import UNKNOWN_OP, ranks_of
from disttrace_viewer.load.journals import Journal
from disttrace_viewer.load.schema import Record
from disttrace_viewer.merge.store_servers import Life, clusters, identifier
from disttrace_viewer.trace.model import Call, Group, Member, Signature, Store
from disttrace_viewer.trace.process import Process, Stack
from disttrace_viewer.trace.values import dataclass, field, replace, together

if TYPE_CHECKING:
    import polars as pl

V = TypeVar("V")
Copies = frozenset[tuple[int, int]]
"""Processes and groups that they inherited."""
KINDS = ("collective", "message", "store", "constructor", "composed")
_TEXTS = ("backend", "device", "reduce_op", "name", "origin")
_NUMBERS = ("bytes", "root", "peer", "tag")


def stores_of(process: int, records: Mapping[int, Record], first: int) -> dict[int, Store]:
    """The stores of a process by number, of which ``first`` is the first index; without places."""
    index = dict(zip(records, range(first, first + len(records)), strict=True))
    return {
        number: Store(
            index=index[number],
            process=process,
            number=number,
            type=record.get("type") or "?",
            base=index.get(record.get("base", number), index[number]),
            prefix=tuple(record.get("prefix") or ()),
            server=record.get("server", False),
            place="",
            timeout_ns=record.get("timeout"),
            **{name: record.get(name) or None for name in ("name", "host", "address", "path")},
            **{name: record.get(name) for name in ("port", "connection")},
        )
        for number, record in records.items()
    }


_MOST_KNOWN = 1 << 18


class ByIdentity(Generic[V]):
    """What was made of objects, found again by identity, which takes less than to hash them. Each
    is kept, until there are many."""

    def __init__(self, make: Callable[[Any], V]) -> None:
        self._make = make
        self._known: dict[int, tuple[object, V]] = {}

    def of(self, thing: Any) -> V:
        """What ``make`` gives for an object, which is never changed."""
        found = self._known.get(id(thing))
        if found is None:
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            found = self._known[id(thing)] = (thing, self._make(thing))
        return found[1]


@dataclass(frozen=True, slots=True)
class _Alike:
    """What calls of one record share; numbers are the process's own."""

    group: int
    store: int
    signature: Signature

    @classmethod
    def of(cls, record: Record) -> _Alike:
        args = record.get("args") or {}
        ranks = ranks_of(args.get("ranks"))
        shapes, dtypes = record.get("shapes"), record.get("dtypes")
        kind = record.get("kind")
        return cls(
            group=record.get("group", -1),
            store=record.get("store", -1),
            signature=Signature(
                op=record.get("op") or UNKNOWN_OP,
                kind=kind if kind in KINDS else "unknown",
                asynchronous=record.get("async"),
                shapes=None if shapes is None else tuple(map(tuple, shapes)),
                dtypes=None if dtypes is None else tuple(dtypes),
                splits=record.get("splits"),
                args=args if ranks is None else {**args, "ranks": list(ranks)},
                **{name: record.get(name) or None for name in _TEXTS},
                **{name: record.get(name) for name in _NUMBERS},
            ),
        )


@dataclass(slots=True)
class Calls:
    """The calls of all processes while they are collected."""

    stores: Mapping[tuple[int, int], int]
    """Index of a store by (process, number)."""
    groups: Mapping[tuple[int, int], int]
    copies: Copies
    found: list[Call] = field(default_factory=list)
    records: list[Record] = field(default_factory=list)
    """By call."""
    _alike: ByIdentity[_Alike] = field(default_factory=lambda: ByIdentity(_Alike.of))
    """By record, which journals of a job share."""

    def add(self, process: int, journal: Journal, record: Record, stack: Stack) -> int:
        """Take a call of a process; its index."""
        alike = self._alike.of(record)
        group = self.groups.get((process, alike.group))
        rank = None
        if group is not None and (process, group) not in self.copies:
            rank = journal.definitions.numbered["group"][alike.group].get("rank")
        index = len(self.found)
        store = self.stores.get((process, alike.store))
        self.found.append(Call(index, process, group, rank, store, stack, alike.signature))
        self.records.append(record)
        return index

    def table(self, stacks: Sequence[Stack]) -> pl.DataFrame:
        """The calls as columns; stacks as their places in ``stacks``."""
        import polars as pl  # here, for calls of states are read where there is none

        from disttrace_viewer.trace.columns import CALLS

        own = ("process", "op", "kind", "group", "group_rank", "store")
        columns: dict[str, Any] = {name: [getattr(c, name) for c in self.found] for name in own}
        places = {stack: place for place, stack in enumerate(stacks)}
        columns["stack"] = [places.get(call.stack) for call in self.found]
        for name in ("splits", "args"):
            columns[name] = [_json(record.get(name)) for record in self.records]
        for name in _TEXTS:
            columns[name] = [record.get(name) or None for record in self.records]
        for name in ("async", *_NUMBERS):
            columns[name] = [record.get(name) for record in self.records]
        for name in ("shapes", "dtypes"):
            columns[name] = _lists([record.get(name) for record in self.records], CALLS[name])
        known: dict[str, int] = {}
        names = ("root", "dtypes", "shapes", "splits", "reduce_op")
        columns["signature"] = [
            known.setdefault(repr([call.op, *map(record.get, names)]), len(known))
            for call, record in zip(self.found, self.records, strict=True)
        ]
        return pl.DataFrame({name: columns[name] for name in CALLS}, schema=CALLS, strict=False)


def _lists(values: Sequence[Any], dtype: pl.DataType) -> pl.Series:
    """Lists as a column, each made once: polars looks long at each, and ranks share them."""
    import polars as pl

    texts = [repr(value) for value in values]
    distinct = dict(zip(texts, values, strict=True))
    place = {text: number for number, text in enumerate(distinct)}
    made = pl.Series([*distinct.values()], dtype=dtype, strict=False)
    return made.gather(pl.Series([place[text] for text in texts], dtype=pl.UInt32))


def _json(value: object) -> str | None:
    return None if value is None else orjson.dumps(value).decode()


class Seen(NamedTuple):
    """A group as one process defined it."""

    process: int
    number: int
    record: Record
    base: int | None
    """The store at the bottom of the chain of prefixes of its own, as ``places`` have it."""
    prefix: tuple[str | None, ...]
    t_ns: int | None

    @property
    def ranks(self) -> tuple[int, ...] | None:
        return self.record.get("ranks")


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
            key: Hashable = ("met", places.get(item.base, ""), item.prefix, item.record.get("nth"))
        else:
            name = item.record.get("name") or ""
            named = (item.process, name, item.ranks or item.record.get("size"))
            count[named] = count.get(named, 0) + 1
            key = ("named", circles[item.process], name, count[named])
        buckets.setdefault(key, []).append(item)
    groups: list[Group] = []
    firsts: list[tuple[int, int]] = []
    index: dict[tuple[int, int], int] = {}
    for key in list(buckets):  # each is given up when it is merged: there may be a million
        bucket = buckets.pop(key)
        for alike in _by_members(bucket):
            for meeting in clusters(alike, lambda s: lives[s.process]):
                group, first = _group(len(groups), meeting, places)
                groups.append(group)
                firsts.append((first.process, first.number))
                index.update(((s.process, s.number), group.index) for s in meeting)
    return tuple(groups), index, firsts


def named(
    groups: Sequence[Group], processes: Sequence[Process], ids: Sequence[str]
) -> tuple[Group, ...]:
    """The groups with their ids; where some share one (a port that was used twice, hosts apart),
    each gets a suffix."""
    shared = Counter(ids)
    found = (replace(group, id=one) for group, one in zip(groups, ids, strict=True))
    return tuple(_unique(g, processes) if shared[g.id] > 1 else g for g in found)


def without_copies(
    groups: Sequence[Group], processes: Sequence[Process]
) -> tuple[tuple[Group, ...], Copies]:
    """The groups without forked children, which have copies of their parent's; and who has which
    copy."""
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
    # Equal lists mostly are one object; a tuple works out its hash each time.
    alike = together((id(item.ranks), item) for item in bucket if item.ranks is not None)
    for items in alike.values():
        found.setdefault(items[0].ranks, []).extend(items)
    for item in bucket:
        if item.ranks is None:
            size = item.record.get("size")
            sized = [k for k in found if isinstance(k, tuple) and len(k) == size]
            found.setdefault(sized[0] if len(sized) == 1 else size, []).append(item)
    return list(found.values())


def _group(index: int, seen: Sequence[Seen], places: Mapping[int, str]) -> tuple[Group, Seen]:
    first = next((s for s in seen if s.ranks is not None), seen[0])
    record, records = first.record, [s.record for s in seen]
    members = [
        Member(s.process, s.number, s.record.get("rank"), s.t_ns, s.record.get("desc") or None)
        for s in seen
    ]
    members.sort(key=lambda one: (one.rank is None, one.rank or 0, one.process))
    group = Group(
        id="", index=index, name=record.get("name") or "", desc=record.get("desc") or None,
        type=record.get("type") or None, backends=record.get("backends") or {}, ranks=first.ranks,
        size=record.get("size"), default=any(r.get("default", False) for r in records),
        place=None if first.base is None else places.get(first.base, ""),
        prefix=first.prefix, members=tuple(members),
        timeout_ns=next((ns for r in records if (ns := r.get("timeout"))), None),
        partial=any(r.get("partial", False) for r in records),
    )  # fmt: skip
    return group, first
