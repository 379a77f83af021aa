"""One group for all of its members: process groups of different processes that are the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from disttrace_viewer.merge.store_servers import Life, clusters, identifier
from disttrace_viewer.trace.model import Group, Member
from disttrace_viewer.trace.process import Process


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


def merge(
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
        id="",
        index=index,
        name=first.name,
        desc=first.desc,
        type=first.type,
        backends=first.backends,
        ranks=first.ranks,
        size=first.size,
        default=any(s.default for s in seen),
        place=None if first.base is None else places.get(first.base, ""),
        prefix=first.prefix,
        members=tuple(Member(s.process, s.number, s.rank, s.t_ns, s.desc) for s in ordered),
        timeout_ns=next((s.timeout_ns for s in seen if s.timeout_ns), None),
        partial=any(s.partial for s in seen),
    )
    return group, first
