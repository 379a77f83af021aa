"""The order of a process's collectives, for the few states of which that is needed.

Whether one side made one more call than the other shows by all calls of both. A loop makes the
same ones again and again, so that a million of them pack into a few kilobytes.
"""

from __future__ import annotations

import base64
import functools
import itertools
import zlib
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar

T = TypeVar("T")

MOST_PACKED = 16 << 10
"""Bytes of one stream; of calls that follow no pattern nothing is kept."""
MOST_CALLS = 1 << 22
MOST_DIFFERENT = 256
"""Different calls of a stream, or places from which it is called; of more nothing is kept."""
_MOST_AHEAD = 1 << 10
_NUMBERS = "I"


class CallOrder:
    """The calls of one stream by sequence number, as they are read."""

    def __init__(self, *, anywhere: bool = False) -> None:
        """``anywhere``: they may begin at any number, for only the end of a journal is read."""
        self._first: int | None = None if anywhere else 1
        self._calls = array(_NUMBERS)
        self._ahead: dict[int, int] = {}
        """Of threads that write side by side, and where the beginning is lost."""

    def note(self, number: int, call: int) -> None:
        calls, ahead = self._calls, self._ahead
        if self._first is None:
            self._first = number
        following = self._first + len(calls)
        if number == following:
            calls.append(call)
            while ahead and (call := ahead.pop(self._first + len(calls), -1)) >= 0:
                calls.append(call)
        elif number > following and len(ahead) < _MOST_AHEAD:
            ahead[number] = call

    def refused(self, number: int) -> None:
        """It gives its number back."""
        if self._calls and number == self.first + len(self._calls) - 1:
            self._calls.pop()

    @property
    def first(self) -> int:
        return self._first or 1

    def all(self) -> array[int] | None:
        """All calls; None where one is missing, or there are too many."""
        calls = self._calls
        return None if self._ahead or not calls or len(calls) > MOST_CALLS else calls


def packed(calls: array[int]) -> str | None:
    """Calls by sequence number as text; None where it would be too long."""
    data = zlib.compress(calls.tobytes(), 6)
    return base64.b85encode(data).decode() if len(data) <= MOST_PACKED else None


class History(Sequence[tuple[int, T]], Generic[T]):
    """Sequence numbers and calls of ``packed``, kept as that: few are ever looked at."""

    def __init__(self, text: str, calls: Mapping[int, T], first: int = 1) -> None:
        """``calls`` by number; ``first`` is the lowest. Raises ValueError for no history."""
        self._first = first
        self._text = text
        self._calls = calls
        self._length = len(self._unpacked())

    def _unpacked(self) -> array[int]:
        numbers = array(_NUMBERS)
        data = base64.b85decode(self._text)
        try:
            found = zlib.decompressobj().decompress(data, MOST_CALLS * numbers.itemsize)
        except zlib.error as error:
            raise ValueError("no history") from error
        numbers.frombytes(found)
        if not self._calls.keys() >= {*numbers}:
            raise ValueError("a history of calls that are not known")
        return numbers

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[tuple[int, T]]:
        calls = self._calls
        return ((number, calls[call]) for number, call in enumerate(self._unpacked(), self._first))

    def __getitem__(self, place: Any) -> Any:
        return list(self)[place]


def courses_differ(courses: Iterable[tuple[int, int, int]]) -> bool:
    """Whether hashes of courses show, or do not exclude, that members called from other lines:
    those that are one call apart are compared up to where the later one was.
    """
    by_number: dict[int, set[int]] = {}
    before: dict[int, set[int]] = {}
    for newest, up_to, until in courses:
        by_number.setdefault(newest, set()).add(up_to)
        before.setdefault(newest - 1, set()).add(until)
    numbers = sorted(by_number)
    if any(len(by_number[n] | before.get(n, set())) > 1 for n in numbers):
        return True
    return any(b - a > 1 for a, b in itertools.pairwise(numbers))


_HASH = (1 << 61) - 1


@functools.lru_cache(maxsize=1 << 12)
def site_of(op: str, frames: tuple[tuple[str, int, str], ...]) -> int:
    """The same number for a call site in all processes, which mostly share theirs."""
    return zlib.crc32(repr((op, [*frames])).encode())


@functools.lru_cache(maxsize=1 << 12)
def hashed(start: int, sites: tuple[int, ...]) -> tuple[int, int]:
    """A hash continued by call sites, and that before the last of them."""
    now = before = start
    for site in sites:
        before, now = now, (now * 1_000_003 + site) & _HASH
    return now, before
