"""What the definitions in all states say together: processes, groups and jobs.

States are gone through by the batch, and nothing of them is kept but what the result is made of.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields
from typing import Any

from disttrace_viewer.load.problems import CUT_OFF, Problems
from disttrace_viewer.merge import processes as processing
from disttrace_viewer.merge.surveying import Surveyed, Surveying
from disttrace_viewer.states.packed import Heads, Packed, batches_of, head_of
from disttrace_viewer.states.state import State, journal_of
from disttrace_viewer.trace.process import Problem

OF_PROCESSES = ("stack", "store", "group")
"""Kinds of definitions from which processes and groups are made; names of threads nobody asks for
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
    unsettled: bool
    """Some process is not done with a group that it makes, or failed to make it."""
    paths: tuple[str, ...]
    """Of the first journal in each folder, without its suffix."""
    made: list[int]
    """By process the hash of the groups that it made."""

    @property
    def alike(self) -> bool:
        """Whether all processes made the same groups, and came to an end with it: then no rule can
        have a use for creations that are over.
        """
        if self.unsettled:
            return False
        joined: set[int] = set()
        for group in self.groups:
            if group.default:
                members = [m.process for m in group.members]
                if len({self.made[i] for i in members}) > 1 or joined & {*members}:
                    return False
                joined.update(members)
        return True


def survey(states: Mapping[str, State], only: Collection[str] | None = None) -> StateSurvey:
    """What all states say, or those of some processes."""
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
    return building.done(_problems(heads))


def _problems(heads: Heads) -> Problems:
    problems = Problems()
    for _, found in sorted(heads.problems.items()):
        for path, kind, sentence in found:
            if kind == CUT_OFF:
                problems.cut_off[path] = None
            else:
                problems.take(Problem(path=path, kind=kind, sentence=sentence))
    return problems


class _Surveying(Surveying):
    """Collects what states say of processes, by their place, in any order."""

    def __init__(self, index: dict[str, int], clocks: processing.Clocks) -> None:
        super().__init__(clocks)
        self._index = index
        self._made: dict[int, int] = {}
        self._folders: dict[str, str] = {}
        self._partial: set[int] = set()
        self._unsettled = False
        self._argv: dict[tuple[str, ...], tuple[str, ...]] = {}
        self._versions: dict[str, dict[str, Any]] = {}

    def take(self, state: State) -> None:
        """One state."""
        place = self._index[state.id]
        told = state.process
        self._folders.setdefault(os.path.dirname(state.base), state.base)
        for record in (told, state.identity):
            for name in OF_MANY:
                if type(word := record.get(name)) is str:
                    record[name] = sys.intern(word)
        told["argv"] = argv = tuple(told.get("argv") or ())
        told["argv"] = self._argv.setdefault(argv, argv)
        state.versions = self._versions.setdefault(repr(state.versions), state.versions)
        self.journal(place, journal_of(state, OF_PROCESSES), state.met)
        self._made[place] = state.made
        self._unsettled |= state.unsettled
        if state.partial:
            self._partial.add(place)

    def done(self, problems: Problems) -> StateSurvey:
        """What they say together."""
        found = self.together()
        return StateSurvey(
            **{one.name: getattr(found, one.name) for one in fields(found)},
            index=self._index,
            problems=problems,
            partial=frozenset(self._partial),
            paths=tuple(self._folders.values()),
            unsettled=self._unsettled,
            made=[self._made[i] for i in range(len(self._index))],
        )
