"""Whether the ranks of this host call the same things under the same numbers, a look at a time.

Each process compares itself with the first one of its job on this host, by the pages in which both
show what they called (``recording/courses.py``). What differs is a suspicion and no verdict: that
ranks are out of step is judged by the companion, from the journals, by the rules of ``diagnose``. A
suspicion that leads to nothing is asked about some times and then taken for the program's habit.

* **What has to be equal** (operation, sizes, dtype, root, reduce op): the digests under the newest
  number that both have. They stay apart once they are, by an amount that each call multiplies: so
  what is a habit by now is left out of the comparison, and the next difference is seen.
* **Lines** may differ: rank 0 logs by another one. Only that both processes have been at both
  lines, and were not at the same one under the same number, makes one suspect a call too few or too
  many.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from disttrace.identity import Identity
from disttrace.journal.descriptors import is_kernels
from disttrace.journal.format import CALLS_SUFFIX, is_plain_name, opened_own
from disttrace.lifecycle.meeting.place import place
from disttrace.lifecycle.meeting.roll import Roll
from disttrace.recording.courses import (
    COUNT,
    FACTOR,
    FIRST_ID,
    FIRST_LINE,
    KEPT,
    LINES,
    MASK,
    NEWEST,
    PAGE,
    STREAM_BYTES,
    STREAMS,
    WORD,
    Courses,
    offset,
)

LOOK_NS = 450_000_000
_AGAIN_S, _TIMES = 1.0, 6
"""A suspicion is told again after so long, then after twice that, and so often in all."""
_MARGIN = 8
"""Calls that the other process may make while its pages are read."""
_MOST_PENDING = 64
Pair = tuple[int, int]
"""Lines of both under one number."""


@dataclass(slots=True)
class _Compared:
    """What is known of one stream beside that of one other process."""

    newest: Pair = (0, 0)
    up_to: int = 0
    """The newest number whose lines were compared."""
    since: int = 0
    apart: int = 0
    """By how much digests were apart under that number, which is habit by now."""
    pairs: dict[Pair, None] = field(default_factory=dict)
    """Lines that were not the same, and may be suspicious as soon as both know both."""
    habits: set[Pair] = field(default_factory=set)
    suspects: set[Pair] = field(default_factory=set)
    asked: int = 0
    ask_at: float = 0.0


class InStep:
    """This process beside the first one of its job on this host."""

    def __init__(self, courses: Courses, journals: str) -> None:
        self._courses = courses
        self._journals = journals
        self._roll = Roll(journals)
        self._streams: dict[tuple[str, int], _Compared] = {}
        self._due = 0
        self._identity: Identity | None = None

    def start(self, identity: Identity) -> None:
        """There is a journal from now on. Raises OSError."""
        self._identity = identity
        self._streams.clear()
        self._courses.start(self._path(identity.base_name()))

    def look(self) -> bool:
        """Whether the companion has to judge. Raises OSError."""
        words, now, identity = self._courses.words, time.monotonic_ns(), self._identity
        if words is None or identity is None or now < self._due:
            return False
        self._due = now + LOOK_NS
        mine = {words[FIRST_ID + stream]: offset(stream) for stream in range(words[COUNT])}
        own = identity.base_name()
        found = False
        for base in self._roll.first(identity):
            if base == own or not mine:
                break  # whoever comes later looks at us
            if is_plain_name(base):
                found = self._beside(base, mine, words) or found
        return found

    def _path(self, base: str) -> str:
        return f"{place(self._journals)}{base}{CALLS_SUFFIX}"

    def _beside(self, base: str, mine: dict[int, int], words: memoryview) -> bool:
        """Compare what one other process shows; what it has of ours is done with then."""
        found = False
        try:
            with opened_own(self._path(base), os.O_RDONLY) as fd:
                head = _words(fd, 0, PAGE)
                for stream in range(min(head[COUNT], STREAMS)):
                    name = head[FIRST_ID + stream]
                    at = mine.pop(name, None)
                    if at is not None:
                        known = self._streams.setdefault((base, name), _Compared())
                        own = words[at // WORD : (at + STREAM_BYTES) // WORD]
                        found = _look(known, own, fd, offset(stream)) or found
        except OSError as error:
            if not is_kernels(error):
                raise
            return found  # it shows nothing
        return found


def _look(known: _Compared, own: memoryview, fd: int, at: int) -> bool:
    newest = (own[NEWEST], _words(fd, at, WORD)[0])
    if newest == known.newest and not known.asked:
        return False
    known.newest = newest
    theirs = _Pages(_words(fd, at, STREAM_BYTES))
    theirs.newest_after = _words(fd, at, WORD)[0]
    return _suspicious(known, _Pages(memoryview(own.tobytes()).cast("Q")), theirs)


class _Pages:
    """One stream of a process as it was read; what was overwritten meanwhile is left out."""

    def __init__(self, words: memoryview) -> None:
        self.words = words
        self.newest = self.newest_after = words[NEWEST]

    @property
    def first(self) -> int:
        """The first number of which all is still there."""
        return max(1, self.newest_after - KEPT + _MARGIN)

    @property
    def lines(self) -> frozenset[int]:
        """Those that it has called from."""
        count = min(self.words[LINES], KEPT - FIRST_LINE)
        return frozenset(self.words[FIRST_LINE : FIRST_LINE + count])

    def places(self, numbers: Iterable[int]) -> Iterator[int]:
        """The lines of calls."""
        return (self.words[KEPT + number % KEPT] for number in numbers)

    def digest(self, number: int) -> int:
        """Of all calls up to one."""
        return self.words[2 * KEPT + number % KEPT]


def _suspicious(known: _Compared, ours: _Pages, theirs: _Pages) -> bool:
    last = min(ours.newest, theirs.newest)
    first = max(ours.first, theirs.first)
    if last < first:
        return False  # one is too far ahead
    apart = (ours.digest(last) - theirs.digest(last)) & MASK
    usual = known.apart * pow(FACTOR, last - known.since, MASK + 1) & MASK
    numbers = range(max(first, known.up_to + 1), last + 1)
    for pair in zip(ours.places(numbers), theirs.places(numbers), strict=True):
        if pair[0] != pair[1] and len(known.pairs) < _MOST_PENDING and pair not in known.habits:
            known.pairs[pair] = None
    known.up_to = max(known.up_to, last)
    if known.pairs:
        both = ours.lines & theirs.lines
        known.suspects.update(pair for pair in known.pairs if both.issuperset(pair))
    if apart == usual and not known.suspects:
        known.asked, known.ask_at = 0, 0.0
        return False
    now = time.monotonic()
    if now < known.ask_at:
        return False
    if known.asked == _TIMES:  # it leads to nothing: that is how the program is
        known.since, known.apart, known.asked = last, apart, 0
        known.habits |= known.suspects
        known.suspects.clear()
        known.pairs.clear()
        return False
    known.ask_at = now + _AGAIN_S * 2**known.asked
    known.asked += 1
    return True


def _words(fd: int, at: int, size: int) -> memoryview:
    data = os.pread(fd, size, at)
    return memoryview(data.ljust(size, b"\0")).cast("Q")
