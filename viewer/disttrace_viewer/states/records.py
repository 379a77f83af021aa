"""What single records of a segment say, and what a few of them say together."""

from __future__ import annotations

import functools
import itertools
import zlib
from collections.abc import Mapping
from typing import Any

import disttrace.journal.format as fmt
from disttrace_viewer.merge.clock_fit import JOINING

Record = dict[str, Any]
INTEGERS = {int}
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


Meeting = tuple[str | None, int, "str | int | None", "int | None"]
"""A stream of exchanges: of collectives (None, group, backend), else the side of a message, group,
peer and tag.
"""


def meeting_of(call: Mapping[str, Any]) -> Meeting | None:
    """The stream of a call whose exchanges bound the clocks of their members; None for others."""
    group, op, backend = call.get("group"), call.get("op"), call.get("backend")
    if group is None:
        return None
    if call.get("kind") == fmt.COLLECTIVE:
        return (None, group, backend, None) if op in JOINING else None
    if call.get("kind") != fmt.MESSAGE or call.get("peer") is None:
        return None
    return (op, group, call["peer"], None if backend in fmt.ON_DEVICE else call.get("tag"))


def write_end(begin: Record, end: Record) -> int:
    """Write down in a begin what its end says of times; how long it took."""
    duration: int = end.get("d", 0)
    begin["end"] = duration
    if "u" in end:
        # A synchronous call waits from its issue on unless it says otherwise.
        begin["issued"] = issued = end["u"]
        begin["wait"] = end.get("v", issued)
    elif "v" in end:
        begin["wait"] = end["v"]
    return duration


def over(record: Record, call: Mapping[str, Any]) -> bool:
    """Whether it has ended; a wait for what a device ends is over when that was seen complete."""
    if "end" in record or "complete" not in record:
        return "end" in record
    return "wait" not in record or fmt.ends_on_device(call.get("backend"), call.get("device"))


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
