"""Definitions: what repeats in records is written once, under a number.

A definition is in the journal before the first record that refers to it. The lock covers a number
and its definition; it is taken once for each thing that is new.

A program may make new things for ever: shapes, stacks of code made by ``exec``, texts of
exceptions, threads. So there is a bound, in bytes and in number, from which on nothing new of them
is defined: what is not known by then is recorded as far as a few last definitions say it.
"""

from __future__ import annotations

import hashlib
import itertools
import marshal
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any

from disttrace import redact
from disttrace.foreign import ours
from disttrace.journal import format as fmt
from disttrace.journal.encoding import encode, json_text
from disttrace.journal.originals import RLock, patient
from disttrace.journal.writer import JournalWriter
from disttrace.recording.core import PlainCore
from disttrace.recording.newest_calls import place_of
from disttrace.recording.operation import CallRecord, Counter

MOST = 50_000
"""Definitions that a process keeps in memory, whatever its journal may hold."""

VARIANTS = 64
"""Signatures of one operation at one place that are defined; later ones stand in begin records."""

_LONG = 512  # bytes of a definition, of more a digest is kept

VARYING = ("name", "shapes", "dtypes", "bytes", "splits", "reduce_op", "root", "args")

LOCK = RLock()
"""A signal handler may record within; one for all recorders, as forks are watched once."""

FURTHER = "(more than the journal may define)"

Made = tuple[CallRecord, bytes]


def added(varying: Mapping[str, Any]) -> bytes:
    """What the begin record of a call that is not whole says of it."""
    return b',"a":' + json_text(redact.current.record(varying)) if varying else b""


Frame = tuple[str, int, str]
"""File, line, function."""


class InternTable:
    """Numbers of what has a definition. The subclass writes them, and has the journal."""

    core: PlainCore
    _journal: JournalWriter | None = None

    def __init__(self) -> None:
        self.bound = 1 << 40  # bytes of definitions from which on nothing new is defined
        self.on_forget: Callable[[], None] = lambda: None  # have tables of calls start anew
        self.forget_definitions()

    def forget_definitions(self) -> None:
        """At first, and after fork: the numbers are the parent's."""
        self.threads_seen: list[dict[str, Any]] = []  # before there was a journal
        self._strings: dict[str, int] = {}
        self._stacks: dict[tuple[Frame, ...], int] = {}
        self.of_handlers: set[int] = set()  # stacks in which a handler of signals is at work
        self.places: dict[int, int] = {}  # by number of a stack, see newest_calls.py
        self._calls: dict[tuple[int | None, bytes, int], CallRecord] = {}
        self._variants: dict[tuple[Any, ...], int] = {}  # op, stack, group and store
        self._numbers: dict[str, itertools.count[int]] = {}
        self._thread_numbers = itertools.count()
        self._thread_known: dict[int, tuple[int, int | None]] = {}  # ident: (number, native id)
        self._bytes = self._count = 0

    @property
    def is_open(self) -> bool:
        return self._journal is not None

    @property
    def full(self) -> bool:
        """Whether nothing new should be defined."""
        return self._bytes >= self.bound or self._count >= MOST

    @property
    def exhausted(self) -> bool:
        """Whether nothing at all should be defined any more, groups and stores included."""
        return self._bytes >= 2 * self.bound or self._count >= 2 * MOST

    def write_definition(self, record: Mapping[str, Any]) -> int:
        """Put a definition into the journal; returns its size in bytes."""
        raise NotImplementedError

    def define(self, kind: str, /, *, n: int | None = None, **keys: Any) -> int:
        """Write a definition under a fresh number, or complete number ``n``."""
        with patient(LOCK):
            if n is None:
                n = next(self._numbers.setdefault(kind, itertools.count(1)))
            self._count += 1
            self._bytes += self.write_definition({fmt.DEF: kind, "n": n, **keys})
        return n

    def string(self, text: str) -> int:
        n = self._strings.get(text)
        if n is None:
            with patient(LOCK):
                if self.full and text != FURTHER:
                    return self.string(FURTHER)
                n = self._strings[text] = self.define("string", v=text)
        return n

    def stack(self, frames: Sequence[Frame]) -> int:
        """Number of an interned stack, innermost first; 0: unknown."""
        key = tuple(frames)
        n = self._stacks.get(key)
        if n is None:
            with patient(LOCK):
                if self.full:
                    return 0
                numbered = [[self.string(f), line, self.string(name)] for f, line, name in frames]
                n = self._stacks[key] = self.define("stack", frames=numbered)
                self.places[n] = place_of(key)
        return n

    def call(self, op: str, /, *, synchronous: bool, counter: Counter | None, **keys: Any) -> Made:
        """The call that says all this, and what its begin records must add to it: beyond
        ``VARIANTS`` definitions at one place, and once definitions are at their bound, whatever is
        ``VARYING``."""
        fixed = {key: value for key, value in keys.items() if value is not None}
        varying = {key: fixed.pop(key) for key in VARYING if key in fixed}
        whole = varying
        if fixed.get("stack") in self.of_handlers:
            fixed["args"] = {"handler": True}
            whole = {**varying, "args": {**varying.get("args", {}), "handler": True}}
        with patient(LOCK):
            for key in ("stack", "group", "store"):
                if fixed.get(key, 1) < 1:  # unknown, or without a definition of its own
                    del fixed[key]
            whole = {**fixed, **whole}
            place = (op, fixed.get("stack"), fixed.get("group"), fixed.get("store"))
            seen, known = self._variants.get(place, 0), len(self._calls)
            new = not self.full and (seen < VARIANTS or not varying)
            call = self._call(op, synchronous, counter, whole, new=new)
            if len(self._calls) > known:
                self._variants[place] = seen + 1
            if call is not None:
                return call, b""
            if self.full:
                fixed.pop("stack", None)
            new = not self.exhausted
            call = self._call(op, synchronous, counter, fixed, whole=False, new=new)
            if call is None:  # not even that: every operation has a name and a kind
                varying = {key: whole[key] for key in whole if key in fixed or key in varying}
                fixed = {"kind": varying.pop("kind", None)}
                call = self._call(op, synchronous, None, fixed, whole=False)
        assert call is not None
        return call, added(varying)

    def forget_calls(self, kind: str, alive: Container[int]) -> None:
        """Let go of calls on a ``store`` or ``group`` that is not ``alive``: a program may make new
        ones for ever."""
        at = {"group": 2, "store": 3}[kind]
        with patient(LOCK):
            for key, call in list(self._calls.items()):
                if (n := getattr(call, kind)) is not None and n not in alive:
                    del self._calls[key]
            for place in list(self._variants):
                if (n := place[at]) is not None and n not in alive:
                    del self._variants[place]
        self.on_forget()

    def frames(self, call: CallRecord) -> tuple[Frame, ...]:
        """The stack of a call, innermost first; empty where it is unknown. For rare calls."""
        with patient(LOCK):
            n = next((s for (s, *_), one in self._calls.items() if one is call), None)
            stacks = list(self._stacks.items())
        return next((frames for frames, number in stacks if number == n), ())

    def thread_number(self, ident: int, name: str, native: int | None) -> int:
        """Number of any thread; an ident that is used again comes with another native id."""
        with patient(LOCK):
            known = self._thread_known.get(ident)
            if known is not None and (native is None or known[1] in (None, native)):
                return known[0]
            if self.full and ident:
                return self.thread_number(0, FURTHER, None)
            number = next(self._thread_numbers)
            self._thread_known[ident] = number, native
            record = {fmt.DEF: "thread", "n": number, "name": name, "native": native}
            self._count += 1
            if self.is_open:
                self._bytes += self.write_definition(record)
            else:
                self.threads_seen.append(record)
        return number

    def _call(
        self,
        op: str,
        synchronous: bool,
        counter: Counter | None,
        keys: Mapping[str, Any],
        *,
        whole: bool = True,
        new: bool = True,
    ) -> CallRecord | None:
        """The call with this definition; where there is none it is made, if it may be ``new``."""
        # Counters live as long as the process.
        try:
            told = marshal.dumps((op, synchronous, dict(keys), whole), 2)  # equal for equal values
        except ours(ValueError):  # of another type than JSON has
            told = encode([op, synchronous, keys, whole])
        if len(told) > _LONG:  # by names of parameters
            told = hashlib.sha256(told).digest()
        identity = keys.get("stack"), told, id(counter)
        call = self._calls.get(identity)
        if call is None and new:
            call = self.core.new_call(self.define("call", op=op, **keys), op, synchronous, counter)
            call.group, call.tag, call.store = keys.get("group"), keys.get("tag"), keys.get("store")
            call.device_ends = fmt.ends_on_device(keys.get("backend"), keys.get("device"))
            call.whole = whole
            call.asks = keys.get("kind") == fmt.STORE
            self._calls[identity] = call
        return call
