"""What a host sends of the calls of its processes: numbers and hashes, of each stream an excerpt.

Other hosts look at another moment, so digests are under numbers that the others have too: the
newest ones, and further back those that 2, 4, 8, ... divide. Of lines all since the last time.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from disttrace.journal.format import CALLS_SUFFIX, is_plain_name, opened_own
from disttrace.lifecycle.meeting import place
from disttrace.recording.shown import FIRST_LINE, KEPT, Page, read, streams
from disttrace_viewer.companion import messages

MOST_STREAMS = 64
"""Of one host."""
MOST_LINES = 16_384
"""Of calls, in one answer: of more those that are longest ago are left out."""
FEWEST = 32
_EACH, _FURTHEST = 8, 64
"""Digests of each distance, and the largest distance."""
_LINE = (1 << 32) - 1


@dataclass(frozen=True, slots=True)
class Excerpt:
    """Of one stream: ``where`` are the lines of its newest calls, of which hashes have 32 bits."""

    name: int
    newest: int
    where: Sequence[int]
    digests: Mapping[int, int]
    lines: frozenset[int]

    @property
    def first(self) -> int:
        """The number of the first call in ``where``."""
        return self.newest - len(self.where) + 1

    def places(self, numbers: Iterable[int]) -> Iterator[int]:
        return (self.where[number - self.first] for number in numbers)

    def under(self, most: int) -> Iterator[int]:
        """The numbers up to ``most`` under which the digest is known, newest first."""
        return (number for number in sorted(self.digests, reverse=True) if number <= most)

    def digest(self, number: int) -> int | None:
        """Of all calls up to one; None: it is not known."""
        return self.digests.get(number)


class Excerpts:
    """Of the processes of this host whose journals lie in ``directory``."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._told: dict[int, int] = {}
        """By stream the newest number of the last time."""

    def of(self, bases: Iterable[str]) -> list[Excerpt]:
        """Of each stream that of the first process that shows it."""
        found: dict[int, Page] = {}
        for base in bases:
            if len(found) < MOST_STREAMS and is_plain_name(base):
                self._read(f"{place(self._directory)}{base}{CALLS_SUFFIX}", found)
        shown = sorted(found.items())[:MOST_STREAMS]
        room = MOST_LINES // max(1, len(shown))
        return [self._excerpt(name, page, room) for name, page in shown]

    def _read(self, path: str, found: dict[int, Page]) -> None:
        try:
            with opened_own(path, os.O_RDONLY) as fd:
                for name, at in streams(fd):
                    if name not in found:
                        found[name] = read(fd, at)
        except OSError:
            return  # it shows nothing, or has ended

    def _excerpt(self, name: int, page: Page, room: int) -> Excerpt:
        since = page.newest - self._told.get(name, 0)
        self._told[name] = page.newest
        count = min(room, max(FEWEST, since + FEWEST), page.newest - page.first + 1)
        numbers = range(page.newest - max(0, count) + 1, page.newest + 1)
        return Excerpt(
            name,
            page.newest,
            [line & _LINE for line in page.places(numbers)],
            {n: d for n in _spread(page.newest) if (d := page.digest(n)) is not None},
            frozenset(line & _LINE for line in page.lines),
        )


def _spread(newest: int) -> Iterator[int]:
    distance = 1
    while distance <= _FURTHEST:
        last = newest - newest % distance
        yield from range(last, last - _EACH * distance, -distance)
        distance *= 2


def values(excerpts: Iterable[Excerpt]) -> list[list[Any]]:
    """Excerpts as values of JSON."""
    return [
        [one.name, one.newest, one.where, [*one.digests.items()], sorted(one.lines)]
        for one in excerpts
    ]


_WORD = messages.number(0, (1 << 64) - 1)
FORM = messages.rows(
    messages.row(
        _WORD,
        _WORD,
        messages.numbers(KEPT, _LINE),
        messages.rows(messages.row(_WORD, _WORD)),
        messages.numbers(KEPT - FIRST_LINE, _LINE),
    ),
    MOST_STREAMS,
)


def read_back(rows: Iterable[Sequence[Any]]) -> list[Excerpt]:
    """The excerpts of an answer that is of the form."""
    return [
        Excerpt(name, newest, where[-newest:], dict(digests), frozenset(lines))
        for name, newest, where, digests, lines in rows
    ]
