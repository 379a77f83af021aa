"""Merges states of processes, in any order and any grouping, and what their definitions hold."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

from disttrace_viewer.load.problems import CUT_OFF, Problems
from disttrace_viewer.merge.jobs import as_called, tries
from disttrace_viewer.merge.processes import Clocks
from disttrace_viewer.merge.surveying import Survey, surveyed
from disttrace_viewer.states.state import State, journal_of
from disttrace_viewer.trace.process import Problem

OF_PROCESSES = ("stack", "store", "group")
"""Kinds of definitions from which processes and groups are made; names of threads are not needed
where there is no table of operations.
"""
OF_MANY = ("job", "host", "boot_id", "role", "cwd", "run", "parent")
"""Words that the records of many processes are alike in: one object for all."""


def survey(states: Mapping[str, State], only: Collection[str] | None = None) -> Survey:
    """What all states hold, or those of some processes."""
    known = [state for state in states.values() if only is None or state.id in only]
    problems = Problems()
    for state in known:
        for path, kind, sentence in state.problems:
            if kind == CUT_OFF:
                problems.cut_off[path] = None
            else:
                problems.take(Problem(path=path, kind=kind, sentence=sentence))
    known.sort(key=lambda state: (state.process.get("start_ns", state.modified_ns), state.id))
    clocks = Clocks()
    folders: dict[str, str] = {}
    same: dict[Hashable, Any] = {}
    for state in known:
        clocks.add(journal_of(state, ()))
        folders.setdefault(os.path.dirname(state.base), state.base)
    return surveyed(
        ((journal_of(_with_shared_words(state, same), OF_PROCESSES), state.met) for state in known),
        clocks,
        tuple(folders.values()),
        problems,
    )


def _with_shared_words(state: State, same: dict[Hashable, Any]) -> State:
    """The state, in which what many are alike in is one object for all."""
    process = state.process
    for record in (process, state.identity):
        for name in OF_MANY:
            if type(word := record.get(name)) is str:
                record[name] = sys.intern(word)
    argv = tuple(process.get("argv") or ())
    process["argv"] = same.setdefault(argv, argv)
    state.versions = same.setdefault(repr(state.versions), state.versions)
    return state


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
    def survey(self) -> Survey:
        """What the definitions of all states hold together."""
        found = survey(self.states)
        if self.called:
            found.processes, found.jobs = as_called(self.called, found.processes, found.jobs)
        return found

    @property
    def partial(self) -> frozenset[str]:
        """Ids of the processes of whose journals only a part was read."""
        return frozenset(one for one, state in self.states.items() if state.partial)


def merge(states: Iterable[State | Merged]) -> Merged:
    """All states in one. ``merge([merge([a, b]), c])`` equals ``merge([a, merge([b, c])])``."""
    found: dict[str, State] = {}
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
        for state in item.states.values() if isinstance(item, Merged) else (item,):
            other = found.get(state.id)
            if other is None or state.rating > other.rating:
                found[state.id] = state
    return Merged(
        {key: found[key] for key in sorted(found)},
        tuple(sorted(unread)),
        called,
        reported,
        elsewhere,
    )


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
    for identity, job in called.items():
        found[of_job[job]][identity] = merged.states[identity]
    return [Merged(states, merged.unread, called) for states in found]
