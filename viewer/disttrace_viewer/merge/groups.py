"""One group for all of its members: process groups of different processes that are the same."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

from disttrace_viewer.merge.store_servers import Life, clusters, identifier
from disttrace_viewer.trace.model import Group, Member, Process, Store


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
    store: int | None
    """Index into all stores."""
    nth: int | None
    default: bool
    t_ns: int | None


def merge(
    processes: Sequence[Process],
    stores: Sequence[Store],
    seen: Sequence[Seen],
    circles: Sequence[int],
    lives: Sequence[Life],
) -> tuple[tuple[Group, ...], Mapping[tuple[int, int], int]]:
    """The groups, and for every (process, number) the index of its group.

    Two definitions are one group when they met in the same place under the same full prefix, are
    the n-th there for both, and have the same members. Where the store or a prefix is unknown,
    name, members and time decide within a ``circle`` (processes that met or descend from one
    another), the k-th of one process being the k-th of the other.
    """
    buckets: dict[Hashable, list[Seen]] = {}
    count: dict[Hashable, int] = {}
    for item in seen:
        store = None if item.store is None else stores[item.store]
        if store is not None and None not in store.prefix:
            key: Hashable = ("met", store.place, store.prefix, item.nth)
        else:
            named = (item.process, item.name, item.ranks or item.size)
            count[named] = count.get(named, 0) + 1
            key = ("named", circles[item.process], item.name, count[named])
        buckets.setdefault(key, []).append(item)
    groups: list[Group] = []
    index: dict[tuple[int, int], int] = {}
    for key, bucket in buckets.items():
        for alike in _by_members(bucket):
            for together in clusters(alike, lambda s: lives[s.process]):
                group = _group(len(groups), key, together, processes, stores)
                groups.append(group)
                index.update(((s.process, s.number), group.index) for s in together)
    return tuple(groups), index


def _by_members(bucket: Sequence[Seen]) -> list[list[Seen]]:
    """Split by members; who does not know the global ranks goes with the only ones of that size."""
    found: dict[Hashable, list[Seen]] = {}
    for item in bucket:
        if item.ranks is not None:
            found.setdefault(item.ranks, []).append(item)
    for item in bucket:
        if item.ranks is None:
            sized = [k for k in found if isinstance(k, tuple) and len(k) == item.size]
            found.setdefault(sized[0] if len(sized) == 1 else item.size, []).append(item)
    return list(found.values())


def _group(
    index: int,
    key: Hashable,
    seen: Sequence[Seen],
    processes: Sequence[Process],
    stores: Sequence[Store],
) -> Group:
    first = next((s for s in seen if s.ranks is not None), seen[0])
    store = None if first.store is None else stores[first.store]
    parts = key if isinstance(key, tuple) else (key,)
    if parts[0] == "named":
        # Circles are numbered by what was read; the members' identities do not change.
        parts = ("named", min(processes[s.process].id for s in seen), *parts[2:])
    ordered = sorted(seen, key=lambda s: (s.rank is None, s.rank or 0, s.process))
    return Group(
        id=identifier(*parts, first.ranks or first.size),
        index=index,
        name=first.name,
        desc=first.desc,
        type=first.type,
        backends=first.backends,
        ranks=first.ranks,
        size=first.size,
        default=any(s.default for s in seen),
        place=store.place if store is not None else None,
        prefix=store.prefix if store is not None else (),
        nth=first.nth,
        members=tuple(Member(s.process, s.number, s.rank, s.t_ns) for s in ordered),
    )
