"""States as they travel, by the batch: unpacked when they are asked for, and not kept.

What Python makes of a state takes forty times its packed size. Of a job of a hundred thousand ranks
a batch at a time is unpacked, as often as all are gone through: twice for a verdict, since whoever
makes a batch tells what has to be known of all first. Of smaller ones all stay.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from disttrace_viewer.merge.processes import Clocks, OwnClock, clock_of
from disttrace_viewer.states.form.journal import journal_of
from disttrace_viewer.states.form.state import Batches, State, inflated

KEPT = 1 << 13
"""Of so many states all stay unpacked."""
_SHIFT = 32


class First(NamedTuple):
    """What has to be known of all before the first of them is looked at."""

    start_ns: int
    clock: OwnClock
    problems: list[list[str]]


Told = Sequence[tuple[str, "tuple[Any, ...]", First]]
"""Of the states of a batch, in its order: ids, ratings, and what is to be known first."""


def first_of(state: State) -> First:
    """What is to be known of a state first."""
    start_ns = state.process.get("start_ns", state.modified_ns)
    return First(start_ns, clock_of(journal_of(state, ())), state.problems)


def told_of(states: Iterable[State]) -> Told:
    """What a batch of states is added with."""
    return [(state.id, state.rating, first_of(state)) for state in states]


class Packed(Mapping[str, State]):
    """States by the process that they are of; of two of one process, that which read more."""

    def __init__(self) -> None:
        self._batches: list[bytes] = []
        self._where: dict[str, int] = {}
        self._beside: dict[str, State] = {}
        """States that came by themselves."""
        self.starts: dict[str, int] = {}
        self.clocks = Clocks()
        self.problems: dict[str, list[list[str]]] = {}
        self._kept: dict[int, list[State]] = {}
        self._shared = Batches()

    def __len__(self) -> int:
        return len(self._where)

    def __iter__(self) -> Iterator[str]:
        return iter(self._where)

    def __getitem__(self, identity: str) -> State:
        found = self._beside.get(identity)
        if found is not None:
            return found
        at = self._where[identity]
        return self._batch(at >> _SHIFT)[at & ((1 << _SHIFT) - 1)]

    def add(self, data: bytes, told: Told | None = None) -> None:
        """One more batch, as ``state.pack_batch`` has it, compressed, with what whoever made it
        told of its states: then it is not unpacked now. Raises StateError.
        """
        number = len(self._batches)
        self._batches.append(data)
        for place, (one, rating, first) in enumerate(told or told_of(self._batch(number))):
            identity = sys.intern(one)
            known = self._where.get(identity)
            if known is None or rating > self[identity].rating:
                self._beside.pop(identity, None)
                self._where[identity] = number << _SHIFT | place
                self._note(identity, first)

    def put(self, states: Iterable[State]) -> None:
        """States that came by themselves."""
        ordered = sorted(states, key=lambda s: (self._where.get(s.id, -1), s.id))
        for state in ordered:
            known = self._where.get(state.id)
            if known is None or state.rating > self[state.id].rating:
                self._where.setdefault(state.id, -1)
                self._beside[state.id] = state
                self._note(state.id, first_of(state))

    def copy(self) -> Packed:
        """Another one with the same states."""
        found = Packed()
        found._batches, found._where = [*self._batches], {**self._where}
        found._beside, found._kept = {**self._beside}, {**self._kept}
        found.starts, found.clocks = {**self.starts}, self.clocks.copy()
        found.problems = {**self.problems}
        found._shared = self._shared
        return found

    def batches(self) -> Iterator[Sequence[State]]:
        """All states, so many at a time as lie in memory together."""
        for number in range(len(self._batches)):
            found = [
                state
                for place, state in enumerate(self._batch(number))
                if self._where[state.id] == number << _SHIFT | place
                and state.id not in self._beside
            ]
            if found:
                yield found
        if self._beside:
            yield [*self._beside.values()]

    def _note(self, identity: str, first: First) -> None:
        self.starts[identity] = first.start_ns
        self.clocks.take(first.clock)
        self.problems.pop(identity, None)
        if first.problems:
            self.problems[identity] = first.problems

    def _batch(self, number: int) -> list[State]:
        found = self._kept.get(number)
        if found is None:
            if len(self._where) > KEPT:
                self._kept.clear()
                self._shared.turn()
            found = self._kept[number] = self._shared.states(inflated(self._batches[number]))
        return found


def batches_of(states: Mapping[str, State]) -> Iterator[Sequence[State]]:
    """All states, so many at a time as lie in memory together."""
    if isinstance(states, Packed):
        yield from states.batches()
    elif states:
        yield [*states.values()]
