"""Who stands where another process does, as part of a trace: with what that one waits in.

Each becomes a process, a member of its groups, and somebody who waits in what the other one waits
in. Of what the other one did before, those operations are taken over in whose groups somebody waits
now, for they say how far it has come there; all others say nothing that is asked. Of very many only
some become processes, and tell of the others (``Crowd``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, fields, replace
from typing import Any

from disttrace.journal.format import COLLECTIVE, MESSAGE, ranks_of
from disttrace_viewer.states.form import crowds
from disttrace_viewer.states.form.alike import Like, Own, names_of_groups
from disttrace_viewer.states.form.state import State
from disttrace_viewer.states.survey import StateSurvey
from disttrace_viewer.trace.model import Call, Crowd, Group, Job, Member, Signature, Stream
from disttrace_viewer.trace.operation import Op
from disttrace_viewer.trace.process import Process

_AMBIGUOUS = -1
_UNKNOWN: dict[str, Any] = {"ppid": None, "ticks": None, "paths": ()}


@dataclass
class Known:
    """What is known of those that were told as a whole; ``add`` appends to it."""

    survey: StateSurvey
    states: Mapping[str, State]
    processes: list[Process] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    ops: dict[int, list[Op]] = field(default_factory=dict)
    counts: dict[int, int] = field(default_factory=dict)
    longest: dict[tuple[int, int], int] = field(default_factory=dict)
    active: dict[tuple[int, int], int] = field(default_factory=dict)
    courses: dict[Stream, dict[int, tuple[int, int, int]]] = field(default_factory=dict)
    groups: list[Group] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)
    """Of groups."""
    crowds: list[Crowd] = field(default_factory=list)
    beside: dict[int, dict[int, list[int]]] = field(default_factory=dict)
    """By group and rank in it of who tells of a crowd, the ranks of these."""


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
    places_of: dict[str, dict[int, int]] = field(default_factory=dict)
    """The same by its name."""
    job_of: dict[int, int] = field(default_factory=dict)


def add(
    known: Known, likes: Mapping[str, Sequence[Like]]
) -> tuple[tuple[Group, ...], tuple[Job, ...]]:
    """Add those who are like some of the processes; the groups and jobs with them."""
    jobs, states = known.survey.jobs, known.states
    if not likes:
        return known.survey.groups, jobs
    known.groups = [*known.survey.groups]
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
    adding.job_of = {p: job.index for job in jobs for p in job.processes}
    alike = [
        (_Model.of(adding, index[one], states[one]), of)
        for one, of in _once(likes, index).items()
        if one in index
    ]
    parted = _parted(adding, alike)
    for number, found in parted.kept:
        for like in found:
            _own_groups(adding, alike[number][0], like)
    more: dict[int, list[int]] = {}
    by_id: dict[str, int] = {}
    for number, found in parted.kept:
        model = alike[number][0]
        own = more.setdefault(adding.job_of.get(model.process, -1), [])
        for like in found:
            by_id[like.id] = len(known.processes)
            own.append(len(known.processes))
            _add(adding, model, like)
    for (number, _), rows in parted.crowds.items():
        for crowd in rows:
            _stand_for(adding, alike[number][0], crowd, by_id)
    groups = tuple(_grown(group, adding.members.get(group.index)) for group in known.groups)
    return groups, tuple(
        replace(job, processes=(*job.processes, *more.get(job.index, ()))) for job in jobs
    )


def _once(likes: Mapping[str, Sequence[Like]], told: Iterable[str]) -> dict[str, list[Like]]:
    """By whom they are like; each that was told of by one only."""
    known = {*told}
    found: dict[str, list[Like]] = {}
    for one, of in likes.items():
        found[one] = []
        for like in of:
            if like.id not in known:
                known.add(like.id)
                found[one].append(like)
    return found


def _parted(adding: _Adding, alike: Sequence[tuple[_Model, list[Like]]]) -> crowds.Parted:
    if sum(len(of) for _, of in alike) <= crowds.MOST_BY_THEMSELVES:
        return crowds.Parted([(number, of) for number, (_, of) in enumerate(alike)], {})
    return crowds.parted([of for _, of in alike], _question(adding, alike))


def _question(adding: _Adding, alike: Sequence[tuple[_Model, Sequence[Like]]]) -> crowds.Question:
    """What is asked of those who are like others."""
    known, asked = adding.known, _Asked()
    names = {group: {name} for name, group in adding.of_name.items() if group != _AMBIGUOUS}
    for op in (op for ops in known.ops.values() for op in ops):
        asked.came(names.get(-1 if op.call.group is None else op.call.group, ()), op)
        if op.pending and op.call.group in names:
            asked.message(known.groups[op.call.group or 0].ranks, op, op.call.group_rank)
    for (group, backend), of in known.courses.items():
        for name in names.get(-1 if group is None else group, ()):
            asked.courses.setdefault((name, backend), set()).update(of.values())
    for model, likes in alike:
        there = model.names_there(likes)
        for op in model.ops:
            asked.came(there.get(-1 if op.call.group is None else op.call.group, ()), op)
            if op.pending and op.call.kind == MESSAGE:
                _ask_for_messages(adding, asked, model, op, likes)
        for (group, backend), course in model.courses:
            for name in there.get(-1 if group is None else group, ()):
                asked.courses.setdefault((name, backend), set()).add(course)
    disputed = {name for (name, _), found in asked.brought.items() if len(found) > 1}
    disputed |= {name for name, numbers in asked.waits.items() if len(numbers) > 1}
    for (name, _), courses in asked.courses.items():
        numbers = {newest for newest, _, _ in courses}
        if len(numbers) < len(courses):  # they came to the same number by other calls
            disputed.add(name)
    return crowds.Question(asked.waits, disputed, asked.wanted, adding.of_name.keys())


def _ask_for_messages(
    adding: _Adding, asked: _Asked, model: _Model, op: Op, likes: Sequence[Like]
) -> None:
    """Each waits for a message of its own, of somebody who is as far from it."""
    there = model.place.get(-1 if op.call.group is None else op.call.group)
    for like in likes:
        asked.wanted.add(like.rank)
        for place, own in like.own:
            if place == there:
                rank = _place(adding, like.groups[place], own, like.rank)
                asked.message(ranks_of(own.ranks), op, rank)


@dataclass
class _Asked:
    waits: dict[str, set[int | None]] = field(default_factory=dict)
    """By group the numbers of what somebody waits in there."""
    brought: dict[tuple[str, int | None], set[tuple[str, ...]]] = field(default_factory=dict)
    """By group and number what its members came with."""
    courses: dict[tuple[str, str | None], set[tuple[int, int, int]]] = field(default_factory=dict)
    wanted: set[int] = field(default_factory=set)

    def came(self, names: Iterable[str], op: Op) -> None:
        """Somebody came to an operation like this one, in groups of these names: for all of their
        members, but for a message, which is of two.
        """
        if op.call.kind == MESSAGE and (op.peer is not None or not op.pending):
            return
        one = op.call.signature
        what = (one.op, one.shapes, one.dtypes, one.reduce_op, one.root, one.splits)
        for name in names:
            if op.pending:
                self.waits.setdefault(name, set()).add(op.seq)
            self.brought.setdefault((name, op.seq), set()).add((*map(repr, what),))

    def message(self, ranks: Sequence[int] | None, op: Op, own: int | None) -> None:
        """The member ``own`` (its rank there) of a group of ``ranks`` waits so."""
        peer = None if op.call.kind != MESSAGE else _beside(op.peer, op.call.group_rank, own)
        if ranks and peer is not None and 0 <= peer < len(ranks):
            self.wanted.add(ranks[peer])


def _own_groups(adding: _Adding, model: _Model, like: Like) -> None:
    """Groups in which it waits and of which none is a member that was told as a whole: of the make
    of that in which the one waits that it is like.
    """
    known = adding.known
    for place, own in like.own:
        key = like.groups[place]
        of = next((group for group, at in model.place.items() if at == place), None)
        if key not in adding.of_name and of is not None:
            adding.of_name[key] = len(known.groups)
            adding.awaited.add(len(known.groups))
            known.ids.append(own.id)
            known.groups.append(_made_like(known.groups[of], len(known.groups), own))


def _made_like(group: Group, index: int, own: Own) -> Group:
    return replace(
        group,
        index=index,
        name=own.name,
        ranks=ranks_of(own.ranks),
        prefix=(*group.prefix[:-1], None),
        members=(),
        default=False,
    )


def _place(adding: _Adding, key: str, own: Own, rank: int) -> int | None:
    """The place of a rank in a group that may be in no state."""
    places = adding.places_of.get(key)
    if places is None:
        ranks = ranks_of(own.ranks) or ()
        places = adding.places_of[key] = {r: place for place, r in enumerate(ranks)}
    return places.get(rank)


def _stand_for(
    adding: _Adding, model: _Model, found: crowds.CrowdOfLikes, by_id: Mapping[str, int]
) -> None:
    """Take down of whom some processes tell."""
    known = adding.known
    tellers = [by_id[like.id] for like in found.tellers]
    last, ranks = found.tellers[-1], tuple(like.rank for like in found.likes)
    shared: set[int] = set()
    apart: dict[int, frozenset[str]] = {}
    for place, (number, name) in enumerate(zip(model.numbers, last.groups, strict=False)):
        group = adding.of_name.get(name, _AMBIGUOUS)
        if group == _AMBIGUOUS:
            continue
        if name not in found.shared:
            if not found.whole:
                apart[group] = frozenset(like.groups[place] for like in found.likes) - {name}
            continue
        shared.add(group)
        own = _rank(adding, group, last.rank)
        places = [_rank(adding, group, rank) for rank in ranks]
        adding.members.setdefault(group, []).extend(
            [Member(tellers[-1], number, place, None) for place in places]
        )
        if own is not None:
            ranks_there = known.beside.setdefault(group, {}).setdefault(own, [])
            ranks_there += [one for one in places if one is not None]
    ids = tuple(like.id for like in found.likes)
    known.crowds.append(
        Crowd((tellers[0], tellers[-1]), ranks, ids, frozenset(shared), apart, found.whole)
    )


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

    def names_there(self, likes: Sequence[Like]) -> Mapping[int, Set[str]]:
        """By each of its own groups what names those that others have in its place."""
        return {
            group: {like.groups[place] for like in likes if place < len(like.groups)}
            for group, place in self.place.items()
        }

    @classmethod
    def of(cls, adding: _Adding, process: int, state: State) -> _Model:
        known = adding.known
        numbers = tuple(names_of_groups(state))
        indices = (known.survey.group_index.get((process, number)) for number in numbers)
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
            group = adding.known.survey.group_index.get((process, number))
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
