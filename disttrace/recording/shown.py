"""What a process shows of its newest calls, and what of it beside another one's is suspicious.

How the pages lie that ``newest_calls.py`` fills, and the comparison: by processes of one host
(``lifecycle/heartbeat.py``), and by companions of several, which exchange excerpts. What differs is
a suspicion and no verdict.

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
from typing import Any

STREAMS = 16
"""Streams of a process that are shown; later ones are compared only when they hang."""
KEPT = 512
"""Newest calls of a stream, as in ``_fast.c``."""
WORD, PAGE = 8, 8 * KEPT
NEWEST, LINES, FIRST_LINE = 0, 1, 8
COUNT, FIRST_ID = 0, 8
FACTOR = 0x9E3779B97F4A7C15
MASK = (1 << 64) - 1
STREAM_BYTES = 3 * PAGE
MARGIN = 8
"""Calls that a process may make while its pages are read."""
_AGAIN_S, _TIMES = 1.0, 6
"""A suspicion is reported again after so long, then after twice that, and so often in all."""
_MOST_PENDING = 64
Pair = tuple[int, int]
"""Lines of both under one number."""


def offset(stream: int) -> int:
    """Where the pages of a stream begin, in bytes."""
    return PAGE + stream * STREAM_BYTES


class Page:
    """One stream of a process as it was read; what was overwritten meanwhile is left out. Of other
    hosts a part is known, which has the same attributes (``companion/comparison.py``)."""

    def __init__(self, words: memoryview) -> None:
        self.words = words
        self.newest = self.newest_after = words[NEWEST]

    @property
    def first(self) -> int:
        """The first number of which all is still there."""
        return max(1, self.newest_after - KEPT + MARGIN)

    @property
    def lines(self) -> frozenset[int]:
        count = min(self.words[LINES], KEPT - FIRST_LINE)
        return frozenset(self.words[FIRST_LINE : FIRST_LINE + count])

    def places(self, numbers: Iterable[int]) -> Iterator[int]:
        """The lines of calls, from ``first`` on."""
        return (self.words[KEPT + number % KEPT] for number in numbers)

    def under(self, most: int) -> Iterator[int]:
        """The numbers up to ``most`` under which the digest is known, newest first."""
        return iter(range(min(most, self.newest), self.first - 1, -1))

    def digest(self, number: int) -> int | None:
        """Of all calls up to one; None: it is not known."""
        is_there = self.first <= number <= self.newest
        return self.words[2 * KEPT + number % KEPT] if is_there else None


def streams(fd: int) -> Iterator[tuple[int, int]]:
    """The streams that an open file shows, and where the pages of each lie. Raises OSError."""
    head = _words(fd, 0, PAGE)
    for stream in range(min(head[COUNT], STREAMS)):
        yield head[FIRST_ID + stream], offset(stream)


def newest(fd: int, at: int) -> int:
    """The number of the newest call of the stream whose pages lie there. Raises OSError."""
    return _words(fd, at, WORD)[NEWEST]


def read(fd: int, at: int) -> Page:
    """The stream whose pages lie there; it may go on meanwhile. Raises OSError."""
    page = Page(_words(fd, at, STREAM_BYTES))
    page.newest_after = newest(fd, at)
    return page


def _words(fd: int, at: int, size: int) -> memoryview:
    data = os.pread(fd, size, at)
    return memoryview(data.ljust(size, b"\0")).cast("Q")


@dataclass(slots=True)
class Compared:
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

    def suspicious(self, ours: Any, theirs: Any) -> bool:
        """Whether what differs now has to be judged."""
        last = min(ours.newest, theirs.newest)
        known = (number for number in theirs.under(last) if ours.digest(number) is not None)
        both = next(known, None)
        if both is None:
            return False  # one is too far ahead
        apart = ((ours.digest(both) or 0) - (theirs.digest(both) or 0)) & MASK
        self._compare_lines(ours, theirs, last)
        # By habit; numbers are not asked for in order.
        usual = self.apart * pow(FACTOR, both - self.since, MASK + 1) & MASK
        if apart == usual and not self.suspects:
            self.asked, self.ask_at = 0, 0.0
            return False
        now = time.monotonic()
        if now < self.ask_at:
            return False
        if self.asked == _TIMES:  # it leads to nothing: that is how the program is
            self.since, self.apart, self.asked = both, apart, 0
            self.habits |= self.suspects
            self.suspects.clear()
            self.pairs.clear()
            return False
        self.ask_at = now + _AGAIN_S * 2**self.asked
        self.asked += 1
        return True

    def _compare_lines(self, ours: Any, theirs: Any, last: int) -> None:
        numbers = range(max(ours.first, theirs.first, self.up_to + 1), last + 1)
        for pair in zip(ours.places(numbers), theirs.places(numbers), strict=True):
            if pair[0] != pair[1] and len(self.pairs) < _MOST_PENDING and pair not in self.habits:
                self.pairs[pair] = None
        self.up_to = max(self.up_to, last)
        if self.pairs:
            both = ours.lines & theirs.lines
            self.suspects.update(pair for pair in self.pairs if both.issuperset(pair))
