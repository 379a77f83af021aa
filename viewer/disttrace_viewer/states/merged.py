"""Merges states of processes, in any order and any grouping."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from disttrace_viewer.merge.jobs import as_called, tries
from disttrace_viewer.states import packed
from disttrace_viewer.states.packed import Packed, batches_of
from disttrace_viewer.states.state import State
from disttrace_viewer.states.survey import StateSurvey, survey


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
        """What the definitions of all states say together."""
        found = survey(self.states)
        if self.called:
            found.processes, found.jobs = as_called(self.called, found.processes, found.jobs)
        return found

    def forget(self) -> None:
        """Work the survey out again when it is next asked for, where it is large."""
        if len(self.states) > packed.KEPT:
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
        most.put(found.values())
    return Merged(most, names, called, reported, elsewhere)


def newest_try(merged: Merged, name: str) -> Merged:
    """The states without those of earlier launches of a job of that name: a job that is tried again
    has nothing to do with the processes of the try before it.
    """
    found = merged.survey
    earlier = {found.processes[i].id for job in tries(found.jobs, name)[:-1] for i in job.processes}
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
