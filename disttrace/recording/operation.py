"""What passes between the doors and the recorder: calls, operations, threads, counters."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from typing import Any

import orjson

from disttrace import redact

# Calls of one thread that wait themselves and are under way at once: more than one only where a
# signal handler communicates too.
_WAITED = 16

_MOST_KEYS = 4096
_LONGEST_KEY = 256  # of a megabyte of keys at most, one is as good as another


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

    __slots__ = ("counter", "device_ends", "flat", "group", "n", "op", "synchronous", "tag")

    def __init__(self, n: int, op: str, synchronous: bool, counter: Counter | None) -> None:
        self.n = n
        self.op = op
        self.synchronous = synchronous  # the public call waits itself: one end record says it all
        self.counter = counter  # of its group and backend, or of its stream of messages
        self.device_ends = False  # over when the device says so, not when a call returns
        # The begin record with what changes left open, where one wait is all that follows.
        self.flat: bytes | None = None
        self.group: int | None = None  # its number; with the tag, for receives from any source
        self.tag: int | None = None


class Operation:
    """One operation between its begin and its end."""

    __slots__ = ("begin", "call", "issued", "n", "seq", "work")

    issued: int  # ns after begin, once the call has returned

    def __init__(self, n: int, begin: int, call: Call, seq: int) -> None:
        self.n = n
        self.begin = begin
        self.call = call
        self.seq = seq
        self.work = 0  # id() of its Work, while somebody holds that


class ThreadState:
    """What the recorder knows of one thread.

    The operation that the flat path of a door is in has no object of its own: an object costs more
    than its record. It stands in ``line`` to ``work`` until it is over, or until something happens
    that the flat path has no room for; then ``Recorder.unfolded`` makes the object.
    """

    __slots__ = (
        "__weakref__",
        "batches",
        "begin",
        "call",
        "inside",
        "issued",
        "line",
        "n",
        "native",
        "number",
        "parents",
        "seq",
        "tail",
        "waited",
        "work",
    )

    n: int
    begin: int
    seq: int
    call: Call
    issued: int

    def __init__(self, number: int) -> None:
        self.number = number
        self.native = threading.get_native_id()
        self.inside = False  # in a recorded call: what comes back through a door is the same one
        self.line: bytes | None = None  # the begin record of the flat path's operation
        self.work = 0  # id() of the Work that its call is about to wait for itself
        self.waited: list[Operation] = []  # the same for operations with an object, innermost last
        self.parents: list[int] = []  # composed operations around the current point
        self.batches: dict[int, list[Operation]] | None = None  # being coalesced, by group
        self.tail = b""
        self.retail()

    def will_wait(self, operation: Operation) -> None:
        """The call of ``operation`` is about to wait for it itself."""
        self.waited.append(operation)
        if len(self.waited) > _WAITED:  # a wait that never came: an exception came between
            del self.waited[0]

    def waits_for(self, work: int) -> Operation | None:
        """Take the operation whose call waits for the Work with this ``id()``, if there is one."""
        for operation in reversed(self.waited):
            if operation.work == work:
                self.waited.remove(operation)
                return operation
        return None

    def take_back(self, n: int) -> Operation:
        """Take operation ``n``, which a signal handler's operation pushed off the flat path."""
        (operation,) = [each for each in self.waited if each.n == n]
        self.waited.remove(operation)
        return operation

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


class KeyTexts:
    """Keys of stores as JSON values, secrets masked; those used again are looked up.

    ``known(key)`` is the value or None, and one call of C.
    """

    def __init__(self) -> None:
        self._made: dict[str, bytes] = {}
        self.known = self._made.get

    def make(self, key: Any) -> bytes:
        """The value of a key, or of a list of them."""
        text = json_text(redact.current.record(key))
        if type(key) is str and len(key) <= _LONGEST_KEY:
            if len(self._made) >= _MOST_KEYS:
                self._made.clear()
            self._made[key] = text
        return text
