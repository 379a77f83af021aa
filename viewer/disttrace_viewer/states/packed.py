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
from disttrace_viewer.states.state import Batches, State, inflated, journal_of

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
    """What is known of all states, told one by one."""

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
        """The same, told so far."""
        found = Heads()
        found.starts, found.clocks = {**self.starts}, self.clocks.copy()
        found.problems = {**self.problems}
        return found


class Packed(Mapping[str, State]):
    """States by the process that they are of; of two of one process, that which read more."""

    def __init__(self) -> None:
        self._batches: list[bytes] = []
        self._where: dict[str, int] = {}
        self._beside: dict[str, State] = {}
        """States that came by themselves."""
        self.heads = Heads()
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

    def add(self, data: bytes, heads: Sequence[Head] = ()) -> None:
        """One more batch, as ``state.pack_batch`` has it, compressed; with the heads of its states,
        where whoever made it told them, it is not unpacked now. Raises StateError.
        """
        number = len(self._batches)
        self._batches.append(data)
        for place, head in enumerate(heads or map(head_of, self._batch(number))):
            identity = sys.intern(head.id)
            known = self._where.get(identity)
            if known is None or head.rating > self[identity].rating:
                self._beside.pop(identity, None)
                self._where[identity] = number << _SHIFT | place
                self.heads.take(head)

    def put(self, states: Iterable[State]) -> None:
        """States that came by themselves."""
        ordered = sorted(states, key=lambda s: (self._where.get(s.id, -1), s.id))
        for state in ordered:
            known = self._where.get(state.id)
            if known is None or state.rating > self[state.id].rating:
                self._where.setdefault(state.id, -1)
                self._beside[state.id] = state
                self.heads.take(head_of(state))

    def copy(self) -> Packed:
        """Another one with the same states."""
        found = Packed()
        found._batches, found._where = [*self._batches], {**self._where}
        found._beside, found._kept = {**self._beside}, {**self._kept}
        found.heads, found._shared = self.heads.copy(), self._shared
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
