"""What passes between the doors and the recorder: calls, operations, threads, counters."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from typing import Any

import orjson


class Counter:
    """Counts 1, 2, 3, ... in one sequence; ``next`` is one call of C and needs no lock."""

    __slots__ = ("next",)

    def __init__(self) -> None:
        self.next: Callable[[], int] = itertools.count(1).__next__

    def give_back(self, number: int) -> None:
        """``number`` was taken for nothing. If another was taken since, it stays a gap."""
        probe = self.next()
        self.next = itertools.count(number if probe == number + 1 else probe).__next__


class Call:
    """One call site with one signature: what its operations share, defined once."""

    __slots__ = ("counter", "device_ends", "group", "n", "op", "synchronous", "tag")

    def __init__(self, n: int, op: str, synchronous: bool, counter: Counter | None) -> None:
        self.n = n
        self.op = op
        self.synchronous = synchronous  # the public call waits itself: one end record says it all
        self.counter = counter  # of its group and backend, or of its stream of messages
        self.device_ends = False  # over when the device says so, not when a call returns
        self.group: int | None = None  # its number; with the tag, for receives from any source
        self.tag: int | None = None


class Operation:
    """One operation between its begin and its end."""

    __slots__ = ("begin", "call", "issued", "n", "seq", "work")

    issued: int  # ns after begin, once the call has returned
    work: int  # id() of its Work, while somebody holds that

    def __init__(self, n: int, begin: int, call: Call, seq: int) -> None:
        self.n = n
        self.begin = begin
        self.call = call
        self.seq = seq


class ThreadState:
    """What the recorder knows of one thread."""

    __slots__ = ("batches", "inside", "native", "number", "parents", "sync", "tail")

    def __init__(self, number: int) -> None:
        self.number = number
        self.native = threading.get_native_id()
        self.inside = False  # in a recorded call: what comes back through a door is the same one
        self.sync: Operation | None = None  # issued by a call that is about to wait for it itself
        self.parents: list[int] = []  # composed operations around the current point
        self.batches: dict[int, list[Operation]] | None = None  # being coalesced, by group
        self.tail = b""
        self.retail()

    def retail(self) -> None:
        """Prepare the part of begin records that this thread's operations share."""
        self.tail = b',"h":%d' % self.number if self.number else b""
        if self.parents:
            self.tail += b',"p":%d' % self.parents[-1]


class Threads(threading.local):
    """``threads.state`` is the calling thread's state, made at its first use."""

    state: ThreadState

    def __init__(self, register: Callable[[], ThreadState]) -> None:
        self.state = register()


def json_text(text: Any) -> bytes:
    """``text`` as a JSON value for the ``extra`` of a begin record."""
    try:
        return orjson.dumps(text)
    except TypeError:  # lone surrogates
        return orjson.dumps(str(text).encode("utf-8", "replace").decode())
