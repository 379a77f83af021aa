"""Which group each line of a watchdog is about, and what all of them say of each rank in it.

A line that tells an operation often names no group, and the one after it does. What stays without a
group is compared with nothing: numbers of two groups have nothing to do with each other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from disttrace_viewer.load.foreign.log_lines import DEFAULT, Group, Said, Work

UNORDERED = frozenset({"send", "recv", "coalesced", "unknown"})
"""Whose numbers differ by rank, or are counted together with others'."""
Key = tuple[str, str]
"""Name and description."""


@dataclass(slots=True)
class Told:
    """What a log says of one rank in one group."""

    work: Work | None = None
    at_ns: int = 0
    enqueued: int | None = None
    completed: int | None = None


Ranks = Mapping[int, Mapping[Key, Told]]


def told(lines: Sequence[Said]) -> tuple[Ranks, frozenset[Key]]:
    """Per rank and group what is said, and the groups in which nobody is compared by number."""
    found: dict[int, dict[Key, Told]] = {}
    strange = _ambiguous(lines)
    plain = all(said.group is None or said.group.is_default for said in lines)
    known = {
        (_rank(said), seq): _key(said.group)
        for said in lines
        if said.group is not None and not (said.group.local and strange)
        for seq in (said.at, said.work and said.work.seq)
        if seq is not None
    }
    bare = [said for said in lines if said.work and said.group is None]
    apart = not plain or not _agree(bare)
    for said in lines:
        rank = _rank(said)
        if rank is None:
            continue  # the rank of a subgroup is nobody's name
        if said.group is not None and not (said.group.local and strange):
            key = _key(said.group)
        elif said.work is None:
            continue
        elif (named := known.get((rank, said.work.seq))) is not None:
            key = named
        else:
            key = _alone(said.work) if apart or said.group is not None else DEFAULT
        _take(found.setdefault(rank, {}).setdefault(key, Told()), said)
    return found, frozenset(_uncounted(found))


def _rank(said: Said) -> int | None:
    if said.rank is not None:
        return said.rank
    return said.inner if said.group is None or said.group.is_default else None


def _key(group: Group) -> Key:
    return group.name, group.desc


def _alone(work: Work) -> Key:
    """For an operation of nobody knows which group: those with its name and number may share it."""
    return f"?{work.seq}:{work.op}", "a group that the log does not name"


def _ambiguous(lines: Iterable[Said]) -> bool:
    """Whether numbers of groups that count in one process only may mean several groups: they mean
    one where everybody's rank in it is its global one.
    """
    return any(
        said.group is not None and said.group.local and said.rank not in (None, said.inner)
        for said in lines
    )


def _agree(bare: Sequence[Said]) -> bool:
    """Whether lines without a group may all be of one: one number, and of nobody two operations.
    Where these are of group ranks (before torch 2.2), one operation.
    """
    if len({said.work.seq for said in bare if said.work}) > 1:
        return False
    ops = {(_rank(said), said.work.op) for said in bare if said.work}
    named = all(said.rank is not None for said in bare)
    return len(ops) == len({rank for rank, _ in ops}) and (named or len({op for _, op in ops}) < 2)


def _take(one: Told, said: Said) -> None:
    one.at_ns = max(one.at_ns, said.at_ns)
    if said.work is not None and one.work is None:
        one.work = said.work
    if said.counted:
        one.enqueued, one.completed = said.enqueued, said.completed


def _uncounted(found: Ranks) -> Iterable[Key]:
    """Groups with messages, which are numbered by themselves, while one counter tells of both."""
    for groups in found.values():
        for key, one in groups.items():
            mixed = (one.completed or 0) > (one.enqueued or 0) and one.enqueued is not None
            if mixed or (one.work is not None and one.work.op in UNORDERED):
                yield key
