"""What kind of lines and records a segment has: without digits a line says which keys there are.

A journal has a dozen of them, however long it is, so that what records hold is asked of these.
"""

from __future__ import annotations

import functools
import itertools
import re
from dataclasses import dataclass

from disttrace_viewer.load.schema import Record

_BEGIN = (b'{"b":,"t":,', b'{"b":,"t":}')
_NUMBERED = re.compile(rb'\{"b":,"t":(?:,"[hspqr]":)*\}')
_PLAIN = re.compile(rb'\{"(?:e":,"d":(?:,"u":)?(?:,"v":)?|[iw]":,"d":|hb":|at":(?:,"h":)?,"k":)\}')


@dataclass(frozen=True, slots=True)
class Shapes:
    """What is known of all lines of a piece of a segment."""

    plain: bool
    """What is no begin says when an operation was issued, waited for or over, and nothing else of
    it; all values are whole numbers.
    """
    numbers: bool
    """All values of begins are whole numbers."""
    threads: bool
    """Some thread is not the first one."""


@functools.lru_cache(maxsize=1 << 10)
def _shape(line: bytes) -> tuple[bool, bool, bool]:
    begin = line.startswith(_BEGIN)
    plain = begin or _PLAIN.fullmatch(line) is not None
    return plain, not begin or _NUMBERED.fullmatch(line) is not None, b'"h":' in line


def shapes_of(data: bytes) -> Shapes:
    """The shapes of whole lines, of which the last one has no newline."""
    found = [_shape(line) for line in {*data.translate(None, b"0123456789").split(b"\n")}]
    return Shapes(
        plain=all(plain for plain, _, _ in found),
        numbers=all(numbers for _, numbers, _ in found),
        threads=any(threads for _, _, threads in found),
    )


INTEGERS = {int}


def are_numbers(records: list[Record]) -> bool:
    """Whether all values are whole numbers, as most are; asked of all at once."""
    values = itertools.chain.from_iterable(map(dict.values, records))
    return set(map(type, values)) <= INTEGERS and all("t" in r for r in records if "b" in r)


def is_begin(record: Record) -> bool:
    """Whether what a begin needs is there, of the types that the format has."""
    whole = all(type(record.get(name, 0)) is int for name in ("s", "h", "p", "q"))
    found = keys_of(record) if "k" in record else ()
    named = type(found) in (list, tuple) and all(type(key) is str for key in found)
    return whole and named and type(record["b"]) is type(record.get("t")) is int


def keys_of(record: Record) -> list[str]:
    """The store keys of an operation."""
    key = record["k"]
    return key if isinstance(key, list) else [key]
