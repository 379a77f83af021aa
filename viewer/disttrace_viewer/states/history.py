"""The order of a process's collectives, for the few states of which that is asked.

Whether one side made one more call than the other is told by all calls of both. A loop makes the
same ones again and again, so that a million of them pack into a few kilobytes.
"""

from __future__ import annotations

import base64
import zlib
from array import array
from collections.abc import Mapping, Sequence

MOST_PACKED = 16 << 10
"""Bytes of one stream; of calls that follow no pattern nothing is told."""
MOST_CALLS = 1 << 22
MOST_SITES = 256
"""Places of a stream from which it is called; with more of them nothing is told of it."""
_NUMBERS = "I"


def packed(calls: Sequence[int]) -> str | None:
    """Calls by sequence number as text; None where it would be too long."""
    if len(calls) > MOST_CALLS:
        return None
    data = zlib.compress(array(_NUMBERS, calls).tobytes(), 6)
    return base64.b85encode(data).decode() if len(data) <= MOST_PACKED else None


def unpacked(text: str) -> list[int]:
    """The calls of ``packed``. Raises ValueError for what is none."""
    stream = zlib.decompressobj()
    numbers = array(_NUMBERS)
    try:
        numbers.frombytes(stream.decompress(base64.b85decode(text), MOST_CALLS * numbers.itemsize))
    except zlib.error as error:
        raise ValueError("no history") from error
    return list(numbers)


def of_numbers(calls: Mapping[int, int]) -> list[int] | None:
    """Calls by sequence number from 1 on; None where one is missing."""
    numbers = sorted(calls)
    if not numbers or numbers != list(range(1, len(numbers) + 1)):
        return None
    return [calls[number] for number in numbers]
