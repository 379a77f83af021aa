"""Who stands where another process does, as part of a trace: with what that one waits in.

Each becomes a process, a member of its groups, and somebody who waits in what the other one waits
in. Of what the other one did before, those operations are taken over in whose groups somebody waits
now, for they say how far it has come there; all others say nothing that is asked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from disttrace.journal.format import COLLECTIVE, MESSAGE
from disttrace_viewer.analysis.sample import Stream
from disttrace_viewer.states.form.alike import Like, names_of_groups
from disttrace_viewer.states.form.state import State
from disttrace_viewer.trace.model import Call, Group, Job, Member, Signature
from disttrace_viewer.trace.operation import Op
from disttrace_viewer.trace.process import Process

_AMBIGUOUS = -1
_UNKNOWN: dict[str, Any] = {"ppid": None, "ticks": None, "paths": ()}


@dataclass
class Known:
    """What is known of those that were told as a whole; ``add`` appends to it."""

    processes: list[Process]
    calls: list[Call]
    ops: dict[int, list[Op]]
    counts: dict[int, int]
    longest: dict[tuple[int, int], int]
    active: dict[tuple[int, int], int]
    courses: dict[Stream, dict[int, tuple[int, int, int]]]
    groups: tuple[Group, ...]
    jobs: tuple[Job, ...]
    group_index: Mapping[tuple[int, int], int]
    """By process and its own number of a group."""


@dataclass
class _Adding:
    known: Known
    courses: dict[int, list[tuple[Stream, tuple[int, int, int]]]] = field(default_factory=dict)
    active: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    longest: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    """Of those that were told as a whole, by process."""
    of_name: dict[str, int] = field(default_factory=dict)
    """The index of a group by its name."""
    awaited: set[int] = field(default_factory=set)
    """Groups in which somebody waits."""
    members: dict[int, list[Member]] = field(default_factory=dict)
    places: dict[int, dict[int, int]] = field(default_factory=dict)
    """By group the place of each rank in it."""
    job_of: dict[int, int] = field(default_factory=dict)


def add(
    known: Known, states: Mapping[str, State], likes: Mapping[str, Sequence[Like]]
) -> tuple[tuple[Group, ...], tuple[Job, ...]]:
    """Add those who are like some of the processes; the groups and jobs with them."""
    index = {process.id: process.index for process in known.processes}
    adding = _Adding(known)
    _name_groups(adding, states, index)
    for stream, of in known.courses.items():
        for process, course in of.items():
            adding.courses.setdefault(process, []).append((stream, course))
    for (process, thread), ns in known.active.items():
        adding.active.setdefault(process, []).append((thread, ns))
    for (process, call), ns in known.longest.items():
        adding.longest.setdefault(process, []).append((call, ns))
    adding.awaited = {
        op.call.group
        for ops in known.ops.values()
        for op in ops
        if op.pending and op.call.group is not None
    }
    adding.job_of = {p: job.index for job in known.jobs for p in job.processes}
    told = {*index}
    more: dict[int, list[int]] = {}
    for one, found in likes.items():
        if one not in index:
            continue
        model = _Model.of(adding, index[one], states[one])
        for like in found:
            if like.id not in told:
                told.add(like.id)
                more.setdefault(adding.job_of.get(model.process, -1), []).append(
                    len(known.processes)
                )
                _add(adding, model, like)
    groups = tuple(_grown(group, adding.members.get(group.index)) for group in known.groups)
    jobs = tuple(
        replace(job, processes=(*job.processes, *more.get(job.index, ()))) for job in known.jobs
    )
    return groups, jobs


@dataclass
class _Model:
    """One that others are like, by its index."""

    process: int
    fields: dict[str, Any]
    numbers: tuple[int, ...]
    """Its own numbers of its groups."""
    place: dict[int, int]
    """By index of a group its place among these."""
    ops: tuple[Op, ...]
    courses: Sequence[tuple[Stream, tuple[int, int, int]]]
    active: Sequence[tuple[int, int]]
    longest: Sequence[tuple[int, int]]

    @classmethod
    def of(cls, adding: _Adding, process: int, state: State) -> _Model:
        known = adding.known
        numbers = tuple(names_of_groups(state))
        indices = (known.group_index.get((process, number)) for number in numbers)
        first = known.processes[process]
        return cls(
            process,
            {one.name: getattr(first, one.name) for one in fields(first)},
            numbers,
            {group: place for place, group in enumerate(indices) if group is not None},
            tuple(known.ops.get(process, ())),
            adding.courses.get(process, ()),
            adding.active.get(process, ()),
            adding.longest.get(process, ()),
        )


def _name_groups(adding: _Adding, states: Mapping[str, State], index: Mapping[str, int]) -> None:
    for one, process in index.items():
        for number, name in names_of_groups(states[one]).items():
            group = adding.known.group_index.get((process, number))
            if name and group is not None and adding.of_name.setdefault(name, group) != group:
                adding.of_name[name] = _AMBIGUOUS


def _add(adding: _Adding, model: _Model, like: Like) -> None:
    known = adding.known
    index = len(known.processes)
    own = {
        "id": like.id,
        "index": index,
        "host": like.host,
        "pid": like.pid,
        "rank": like.rank,
        "local_rank": like.local_rank,
        "parent": like.parent,
    }
    known.processes.append(Process(**{**model.fields, **_UNKNOWN, **own}))
    groups = [adding.of_name.get(name, _AMBIGUOUS) for name in like.groups]
    for number, own_group in zip(model.numbers, groups, strict=False):
        if own_group != _AMBIGUOUS:
            member = Member(index, number, _rank(adding, own_group, like.rank), None)
            adding.members.setdefault(own_group, []).append(member)
    calls: dict[int, Call] = {}
    kept = []
    for op in model.ops:
        group = _own(model, groups, op.call.group)
        if not (op.pending or (op.call.kind in (COLLECTIVE, MESSAGE) and group in adding.awaited)):
            continue
        call = calls.get(op.call.index)
        if call is None:
            rank = None if group is None else _rank(adding, group, like.rank)
            call = calls[op.call.index] = Call(
                len(known.calls),
                index,
                group,
                rank,
                op.call.store,
                op.call.stack,
                _signature(op.call, rank),
            )
            known.calls.append(call)
        source = _beside(op.source, op.call.group_rank, call.group_rank)
        kept.append(_op(index, op, call, source))
    known.ops[index] = kept
    known.counts[index] = known.counts.get(model.process, 0)
    known.active.update({(index, thread): ns for thread, ns in model.active})
    known.longest.update({(index, calls[n].index): ns for n, ns in model.longest if n in calls})
    for (of, backend), course in model.courses:
        group = _own(model, groups, of)
        if group is not None:
            known.courses.setdefault((group, backend), {})[index] = course


def _op(process: int, op: Op, call: Call, source: int | None) -> Op:
    """The same of another process; ``replace`` takes four times as long."""
    return Op(
        process,
        op.number,
        call,
        op.thread,
        op.parent,
        op.seq,
        op.key,
        source,
        op.error,
        op.refused,
        op.lost,
        op.asked,
        op.begin_ns,
        op.issued_ns,
        op.wait_begin_ns,
        op.complete_ns,
        op.end_ns,
    )


def _signature(call: Call, rank: int | None) -> Signature:
    if call.kind != MESSAGE or call.signature.peer is None:
        return call.signature
    return replace(call.signature, peer=_beside(call.signature.peer, call.group_rank, rank))


def _beside(peer: int | None, rank: int | None, own: int | None) -> int | None:
    """Who is as far from ``own`` as ``peer`` is from ``rank``."""
    return None if peer is None or rank is None or own is None else peer - rank + own


def _own(model: _Model, groups: Sequence[int], group: int | None) -> int | None:
    """Its own group where the one that it is like has ``group``."""
    place = model.place.get(-1 if group is None else group)
    if place is None or place >= len(groups) or groups[place] == _AMBIGUOUS:
        return None
    return groups[place]


def _rank(adding: _Adding, group: int, rank: int) -> int | None:
    places = adding.places.get(group)
    if places is None:
        ranks = adding.known.groups[group].ranks or ()
        places = adding.places[group] = {r: place for place, r in enumerate(ranks)}
    return places.get(rank)


def _grown(group: Group, more: Sequence[Member] | None) -> Group:
    if not more:
        return group
    members = sorted(
        (*group.members, *more), key=lambda m: (m.rank is None, m.rank or 0, m.process)
    )
    return replace(group, members=tuple(members))
