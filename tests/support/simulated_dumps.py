"""Jobs on devices, run call by call until nothing moves, and what each rank's recorder holds then.

A group is a stream of each member's device, as of NCCL's communicators; messages between two ranks
are another one. A host goes on until a call whose result it reads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from support.flight_dumps import dump, entry

Key = tuple[Any, ...]
DEFAULT, PAIRS = "0", "1"
"""Groups of all ranks, and of those that send to one another."""


@dataclass(frozen=True)
class Call:
    """A collective of a group, or messages, ``(send or recv, peer)``, that are launched as one."""

    group: str
    op: str = "all_reduce"
    messages: tuple[tuple[str, int], ...] = ()
    reads: bool = False
    line: int = 7


@dataclass(frozen=True)
class Fault:
    """What is wrong with some ranks (``who``) from their call number ``at`` on.

    ``missing``: the host stops before it. ``unseen``: its end, and all later ones, is seen by
    neither host nor recorder.
    """

    kind: str
    who: tuple[int, ...]
    at: int


@dataclass
class Issued:
    """A call on its way; ``over`` on the device, ``known`` to its host."""

    call: Call
    keys: tuple[Key, ...]
    stream: Key
    number: int
    """Of the call in its program."""
    at_s: float
    seq: int
    p2p: int
    over: bool = False
    known: bool = False


@dataclass
class Rank:
    rank: int
    program: Sequence[Call]
    place: int = 0
    issued: list[Issued] = field(default_factory=list)
    counts: dict[Key, int] = field(default_factory=dict)

    def count(self, *key: Any) -> int:
        self.counts[key] = self.counts.get(key, 0) + 1
        return self.counts[key]


def run(
    programs: Sequence[Sequence[Call]], groups: Mapping[str, Sequence[int]], fault: Fault
) -> list[Rank]:
    """The ranks once nothing moves any more."""
    ranks = [Rank(rank, program) for rank, program in enumerate(programs)]
    clock, moved = 0, True
    while moved:
        moved = False
        for one in ranks:
            clock += 1
            moved |= _issue(one, groups, fault, clock / 10_000)
        moved |= _devices(ranks, groups, fault)
    return ranks


def _issue(one: Rank, groups: Mapping[str, Sequence[int]], fault: Fault, at_s: float) -> bool:
    last = one.issued[-1] if one.issued else None
    if last is not None and last.call.reads and not last.known:
        return False
    missing = fault.kind == "missing" and one.rank in fault.who and one.place >= fault.at
    if one.place >= len(one.program) or missing:
        return False
    call, number = one.program[one.place], one.place
    one.place += 1
    if call.messages:
        p2p, seq = one.count("p2p", call.group), one.counts.get(("seq", call.group), 0)
        me = one.rank
        pairs = [(me, peer) if op == "send" else (peer, me) for op, peer in call.messages]
        keys: tuple[Key, ...] = tuple(
            ("message", *pair, one.count(op, *pair))
            for (op, _), pair in zip(call.messages, pairs, strict=True)
        )
        stream: Key = ("messages", call.group)
    else:
        p2p, seq = one.counts.get(("p2p", call.group), 0), one.count("seq", call.group)
        keys, stream = (("collective", call.group, seq),), ("collectives", call.group)
    one.issued.append(Issued(call, keys, stream, number, at_s, seq, p2p))
    return True


def _devices(ranks: Sequence[Rank], groups: Mapping[str, Sequence[int]], fault: Fault) -> bool:
    at: dict[Key, dict[int, Issued]] = {}
    for one in ranks:
        for item in _active(one):
            for key in item.keys:
                at.setdefault(key, {})[one.rank] = item
    moved = False
    for one in ranks:
        unseen = fault.kind == "unseen" and one.rank in fault.who
        for item in _active(one):
            if not all(_met(key, ranks, groups, at) for key in item.keys):
                continue
            item.over = moved = True
            item.known = not (unseen and item.number >= fault.at)
    return moved


def _active(one: Rank) -> list[Issued]:
    first: dict[Key, Issued] = {}
    for item in one.issued:
        if not item.over:
            first.setdefault(item.stream, item)
    return list(first.values())


def _met(
    key: Key, ranks: Sequence[Rank], groups: Mapping[str, Sequence[int]],
    at: Mapping[Key, Mapping[int, Issued]],
) -> bool:  # fmt: skip
    """Whether all that take part are at it, or through it."""
    members = key[1:3] if key[0] == "message" else groups[key[1]]
    return all(
        member in at.get(key, {}) or any(i.over and key in i.keys for i in ranks[member].issued)
        for member in members
    )


def dumped(one: Rank, groups: Mapping[str, Sequence[int]], *, version: str) -> dict[str, Any]:
    """A rank's entries in flight."""
    mine = {name: ranks for name, ranks in groups.items() if one.rank in ranks}
    ids = {name: number for number, name in enumerate(mine)}
    kept: list[tuple[bool, dict[str, Any]]] = []
    status: dict[str, tuple[int, int]] = {}
    for item in one.issued:
        call, name = item.call, item.call.group
        number = item.p2p if call.messages else item.seq
        done = number if item.known else status.get(str(ids[name]), (0, 0))[1]
        status[str(ids[name])] = number, done
        parts = [f"{op} {_facing(groups[name], one.rank, op, peer)}" for op, peer in call.messages]
        for place, part in enumerate([*parts, *(["coalesced"] * bool(parts))] or [call.op]):
            bears = not parts or place == len(parts)
            state = "completed" if item.known and bears else "scheduled"
            found = entry(
                part, item.seq, at_s=item.at_s + place * 1e-6, state=state,
                group=(name, "default_pg" if name == DEFAULT else f"group {name}"),
                pg_id=ids[name], sizes=((4,),), backend="nccl", line=call.line,
                p2p=item.p2p if parts else None, retired=item.known and bears,
            )  # fmt: skip
            found["op_id"] = item.seq + item.p2p
            found["p2p_seq_id"] = item.p2p
            kept.append((item.known, found))
    entries = [found for known, found in kept if not known]
    first = len(kept) - len(entries)
    descs = {name: "default_pg" if name == DEFAULT else f"group {name}" for name in mine}
    return dump(entries, groups=mine, first=first, version=version, status=status, descs=descs)


def _facing(members: Sequence[int], rank: int, op: str, peer: int) -> str:
    own, other = members.index(rank), members.index(peer)
    return f"{own}->{other}" if op == "send" else f"{own}<-{other}"
