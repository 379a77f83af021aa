"""What passes between the instrumentation and the recorder: counters, calls, operations, threads.

These are the types of the plain core; the native core has types of its own with the same
attributes (``_fast.c``).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

from disttrace import foreign, redact
from disttrace.journal.encoding import json_text
from disttrace.journal.originals import local

# Calls of one thread that wait themselves and are under way at once: more than one only where a
# signal handler communicates too.
WAITED = 16

_MOST_KEYS = 4096
_LONGEST_KEY = 256  # of a megabyte of keys at most, one is as good as another


class Counter:
    """Counts 1, 2, 3, ... in one sequence; ``next`` is one call of C and needs no lock."""

    __slots__ = ("next",)

    def __init__(self) -> None:
        self.next: Callable[[], int] = itertools.count(1).__next__

    @property
    def n(self) -> int:
        """The number that was taken last."""
        counting: Any = self.next
        return int(repr(counting.__self__)[len("count(") : -1]) - 1

    def give_back(self, number: int) -> None:
        """``number`` was taken for nothing. If another was taken since, it stays a gap."""
        probe = self.next()
        self.next = itertools.count(number if probe == number + 1 else probe).__next__


class CallRecord:
    """One call site with one signature: what its operations share, defined once."""

    __slots__ = (
        *("asks", "counter", "device_ends", "group", "n", "op", "store", "synchronous", "tag"),
        "whole",
    )

    def __init__(self, n: int, op: str, synchronous: bool, counter: Counter | None) -> None:
        self.n = n
        self.op = op
        self.synchronous = synchronous  # the public call waits itself: one end record says it all
        self.counter = counter  # of its group and backend, or of its stream of messages
        self.device_ends = False  # over when the device says so, not when a call returns
        self.asks = False  # of a store
        self.whole = True  # says all of the signature: the begin records need not add to it
        self.group: int | None = None  # its number; with the tag, for receives from any source
        self.tag: int | None = None
        self.store: int | None = None


class Operation:
    """One operation between its begin and its end."""

    n: int
    begin: int
    call: CallRecord
    seq: int
    line: bytes  # its begin record

    # Not slots: what most operations never need costs nothing as an attribute of the class.
    issued = 0  # ns after begin, once the call has returned
    ended = False  # its end is on record, or it was seen complete or lost
    work = 0  # id() of its Work, while somebody holds that
    # A weak reference to that Work, while its end is expected from there.
    reference: Callable[[], Any] | None = None
    asked = False  # the program asked for completion in another form than a wait
    seen = 0  # when its Work was last seen incomplete
    tensors: Sequence[int] = ()  # storages that hold the result, where C++ issued it
    more: Sequence[Operation] = ()  # the others of a coalesced group
    held = False  # we hold its Work, until it is seen complete


class ThreadState:
    """What the recorder knows of one thread."""

    __slots__ = ("batches", "inside", "number", "parents", "tail", "waited")

    def __init__(self, number: int) -> None:
        self.number = number
        self.inside = False  # in a recorded call: what it calls in turn is part of it
        self.waited: list[Operation] = []  # those whose own call waits for them, innermost last
        self.parents: list[int] = []  # composed operations around the current point
        self.batches: dict[int, list[Operation]] | None = None  # being coalesced, by group
        self.tail = b""
        retail(self)


def retail(thread: ThreadState) -> None:
    """Prepare the part of begin records that this thread's operations share."""
    tail = b',"h":%d' % thread.number if thread.number else b""
    if thread.parents:
        tail += b',"p":%d' % thread.parents[-1]
    thread.tail = tail


class Threads(local):
    """``threads.state`` is the calling thread's state, which ``make`` makes at its first use."""

    def __init__(self, make: Callable[[], ThreadState]) -> None:
        self._make = make
        self.state = make()

    def forget(self) -> None:
        """After fork, in the child: the number is the parent's."""
        self.state = self._make()


def size(value: Any) -> int:
    """Bytes of a value, or of all of them."""
    kind = type(value)
    if kind is bytes or (kind is str and value.isascii()):
        return len(value)
    for base in (bytes, bytearray):
        if issubclass(kind, base):
            return base.__len__(value)
    if issubclass(kind, str):
        return len(str.encode(value, "utf-8", "replace"))
    if issubclass(kind, (list, tuple)):
        return sum(size(item) for item in foreign.items_of(value))
    return 0


class KeyTexts:
    """Keys of stores as masked JSON; ``known(key)`` is a look-up by one call of C."""

    def __init__(self) -> None:
        self.made: dict[str, bytes] = {}
        self.known = self.made.get

    def make(self, key: Any) -> bytes:
        """The value of a key, or of a list of them."""
        if type(key) is not str:
            return json_text(redact.current.record(key))
        plain = redact.current.is_plain(key)
        text = b'"%b"' % key.encode() if plain else json_text(redact.current.record(key))
        if len(key) <= _LONGEST_KEY:
            if len(self.made) >= _MOST_KEYS:
                self.made.clear()
            self.made[key] = text
        return text
