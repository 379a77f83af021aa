"""Merges states of processes, in any order and any grouping, and what their definitions hold."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any, NamedTuple

from disttrace_viewer.load.problems import CUT_OFF, Problems
from disttrace_viewer.merge import processes as processing
from disttrace_viewer.merge.jobs import as_called, tries
from disttrace_viewer.merge.processes import Clocks, OwnClock, clock_of
from disttrace_viewer.merge.surveying import Surveyed, Surveying
from disttrace_viewer.states.state import Recent, State, journal_of, pack, unpack
from disttrace_viewer.trace.process import Problem

KEPT = 1 << 13
"""Of so many states all stay unpacked."""
_SHIFT = 32


class Head(NamedTuple):
    """What has to be known of all states before the first of them is looked at."""

    id: str
    rating: tuple[Any, ...]
    start_ns: int
    clock: OwnClock
    problems: list[list[str]]


def head_of(state: State) -> Head:
    """That of a state."""
    start_ns = state.process.get("start_ns", state.modified_ns)
    clock = clock_of(journal_of(state, ()))
    return Head(sys.intern(state.id), state.rating, start_ns, clock, state.problems)


class Heads:
    """What is known of all states, taken one by one."""

    def __init__(self) -> None:
        self.starts: dict[str, int] = {}
        self.clocks = Clocks()
        self.problems: dict[str, list[list[str]]] = {}

    def take(self, head: Head) -> None:
        """One more; of two of one process the later one counts."""
        identity = sys.intern(head.id)
        self.starts[identity] = head.start_ns
        self.clocks.take(head.clock)
        self.problems.pop(identity, None)
        if head.problems:
            self.problems[identity] = head.problems

    def copy(self) -> Heads:
        found = Heads()
        found.starts, found.clocks = {**self.starts}, self.clocks.copy()
        found.problems = {**self.problems}
        return found


class Packed(Mapping[str, State]):
    """States by the process that they are of; of two of one process, that which read more."""

    def __init__(self) -> None:
        self._batches: list[bytes] = []
        self._where: dict[str, int] = {}
        self.heads = Heads()
        self._kept: dict[int, list[State]] = {}
        self._shared: Recent[str, Any] = Recent()

    def __len__(self) -> int:
        return len(self._where)

    def __iter__(self) -> Iterator[str]:
        return iter(self._where)

    def __getitem__(self, identity: str) -> State:
        at = self._where[identity]
        return self._batch(at >> _SHIFT)[at & ((1 << _SHIFT) - 1)]

    def add(self, data: bytes, heads: Sequence[Head] = ()) -> None:
        """The bytes of more states; with the heads of these they are not unpacked now. Raises
        StateError."""
        number = len(self._batches)
        self._batches.append(data)
        for place, head in enumerate(heads or map(head_of, self._batch(number))):
            identity = sys.intern(head.id)
            known = self._where.get(identity)
            if known is None or head.rating > self[identity].rating:
                self._where[identity] = number << _SHIFT | place
                self.heads.take(head)

    def copy(self) -> Packed:
        found = Packed()
        found._batches, found._where = [*self._batches], {**self._where}
        found._kept, found._shared = {**self._kept}, self._shared
        found.heads = self.heads.copy()
        return found

    def batches(self) -> Iterator[Sequence[State]]:
        for number in range(len(self._batches)):
            found = [
                state
                for place, state in enumerate(self._batch(number))
                if self._where[state.id] == number << _SHIFT | place
            ]
            if found:
                yield found

    def _batch(self, number: int) -> list[State]:
        found = self._kept.get(number)
        if found is None:
            if len(self._where) > KEPT:
                self._kept.clear()
                self._shared.turn()
            found = self._kept[number] = unpack(self._batches[number], self._shared)
        return found


def batches_of(states: Mapping[str, State]) -> Iterator[Sequence[State]]:
    """All states, so many at a time as lie in memory together."""
    if isinstance(states, Packed):
        yield from states.batches()
    elif states:
        yield [*states.values()]


OF_PROCESSES = ("stack", "store", "group")
"""Kinds of definitions from which processes and groups are made; names of threads are not needed
where there is no table of operations.
"""
OF_MANY = ("job", "host", "boot_id", "role", "cwd", "run", "parent")
"""Words that the records of many processes are alike in: one object for all."""


@dataclass(slots=True)
class StateSurvey(Surveyed):
    """What lies in states, before any operation is looked at."""

    index: dict[str, int]
    """Place of a process by its id."""
    problems: Problems
    partial: frozenset[int]
    """Processes of whose journals only a part was read."""
    paths: tuple[str, ...]
    """Of the first journal in each folder, without its suffix."""


def survey(states: Mapping[str, State], only: Collection[str] | None = None) -> StateSurvey:
    """What all states hold, or those of some processes."""
    if isinstance(states, Packed) and only is None:
        heads = states.heads
    else:
        heads = Heads()
        for batch in batches_of(states):
            for state in batch:
                if only is None or state.id in only:
                    heads.take(head_of(state))
    order = sorted((start_ns, identity) for identity, start_ns in heads.starts.items())
    index = {identity: place for place, (_, identity) in enumerate(order)}
    del order
    building = _Surveying(index, heads.clocks)
    for batch in batches_of(states):
        for state in batch:
            if state.id in index:
                building.take(state)
    problems = Problems()
    for _, found in sorted(heads.problems.items()):
        for path, kind, sentence in found:
            if kind == CUT_OFF:
                problems.cut_off[path] = None
            else:
                problems.take(Problem(path=path, kind=kind, sentence=sentence))
    return building.done(problems)


class _Surveying(Surveying):
    """Collects what states hold of processes, by their place, in any order."""

    def __init__(self, index: dict[str, int], clocks: processing.Clocks) -> None:
        super().__init__(clocks)
        self._index = index
        self._folders: dict[str, str] = {}
        self._partial: set[int] = set()
        self._argv: dict[tuple[str, ...], tuple[str, ...]] = {}
        self._versions: dict[str, dict[str, Any]] = {}

    def take(self, state: State) -> None:
        place = self._index[state.id]
        process = state.process
        self._folders.setdefault(os.path.dirname(state.base), state.base)
        for record in (process, state.identity):
            for name in OF_MANY:
                if type(word := record.get(name)) is str:
                    record[name] = sys.intern(word)
        process["argv"] = argv = tuple(process.get("argv") or ())
        process["argv"] = self._argv.setdefault(argv, argv)
        state.versions = self._versions.setdefault(repr(state.versions), state.versions)
        self.journal(place, journal_of(state, OF_PROCESSES), state.met)
        if state.partial:
            self._partial.add(place)

    def done(self, problems: Problems) -> StateSurvey:
        found = self.together()
        return StateSurvey(
            **{one.name: getattr(found, one.name) for one in fields(found)},
            index=self._index,
            problems=problems,
            partial=frozenset(self._partial),
            paths=tuple(self._folders.values()),
        )


class WaitsWith(NamedTuple):
    """Ranks of which no state is known, but that they wait where two processes do."""

    like: tuple[str, str]
    """These (ids); where there is one, twice that."""
    number: int
    """The group in question, by the second one's own number; -1: it is still to be made."""
    ranks: tuple[int, ...]
    groups: int
    """In so many other groups of its make; 0: in that very one; -1: they wait in no collective."""


@dataclass(frozen=True)
class Merged:
    """States by the process that they are of; of two of one process, that which read more."""

    states: Mapping[str, State]
    unread: tuple[str, ...] = ()
    """Sentences about journals that were asked for and are in no state."""
    called: Mapping[str, str] = field(default_factory=dict)
    """The ids of jobs by process, where these states are a part of more."""
    reported: tuple[WaitsWith, ...] = ()
    elsewhere: frozenset[int] = frozenset()
    """All ranks of hosts of which no states were requested."""

    @cached_property
    def survey(self) -> StateSurvey:
        """What the definitions of all states hold together."""
        found = survey(self.states)
        if self.called:
            found.processes, found.jobs = as_called(self.called, found.processes, found.jobs)
        return found

    def forget(self) -> None:
        """Work the survey out again when it is next asked for, where it is large."""
        if len(self.states) > KEPT:
            self.__dict__.pop("survey", None)

    @property
    def partial(self) -> frozenset[str]:
        """Ids of the processes of whose journals only a part was read."""
        found = self.survey
        return frozenset(found.processes[i].id for i in found.partial)


def merge(states: Iterable[State | Merged]) -> Merged:
    """All states in one. ``merge([merge([a, b]), c])`` equals ``merge([a, merge([b, c])])``."""
    found: dict[str, State] = {}
    most: Packed | None = None
    unread: dict[str, None] = {}
    called: dict[str, str] = {}
    reported: tuple[WaitsWith, ...] = ()
    elsewhere: frozenset[int] = frozenset()
    for item in states:
        if isinstance(item, Merged):
            reported += item.reported
            elsewhere |= item.elsewhere
            unread.update(dict.fromkeys(item.unread))
            called.update(item.called)
            if most is None and isinstance(item.states, Packed):
                most = item.states
                continue
        each = item.states.values() if isinstance(item, Merged) else (item,)
        for state in each:
            other = found.get(state.id)
            if other is None or state.rating > other.rating:
                found[state.id] = state
    names = tuple(sorted(unread))
    if most is None:
        return Merged(
            {key: found[key] for key in sorted(found)}, names, called, reported, elsewhere
        )
    if found:
        most = most.copy()
        more = [found[key] for key in sorted(found)]
        most.add(pack(more), [*map(head_of, more)])
    return Merged(most, names, called, reported, elsewhere)


def newest_try(merged: Merged, name: str) -> Merged:
    """The states without those of earlier launches of a job of that name: a job that is tried again
    has nothing to do with the processes of the try before it. What lives beside the newest one is
    none: programs of one name, as in a sweep.
    """
    found = merged.survey
    launches = tries(found.jobs, name)
    over = [job for job in launches[:-1] if job.last_ns < launches[-1].start_ns]
    earlier = {found.processes[i].id for job in over for i in job.processes}
    if not earlier:
        return merged
    kept = {one: state for one, state in merged.states.items() if one not in earlier}
    return Merged(kept, merged.unread)


def parts_of(merged: Merged, parts: Sequence[Collection[str]]) -> list[Merged]:
    """The states of some jobs apart (by id, each in one part): they are gone through once."""
    if not parts:
        return []
    of_job = {job: number for number, part in enumerate(parts) for job in part}
    called = {p.id: p.job for p in merged.survey.processes if p.job in of_job}
    found: list[dict[str, State]] = [{} for _ in parts]
    for batch in batches_of(merged.states):
        for state in batch:
            if state.id in called:
                found[of_job[called[state.id]]][state.id] = state
    return [Merged(states, merged.unread, called) for states in found]
