"""Definitions: what repeats in records is written once, under a number.

A definition is in the journal before the first record that refers to it. The lock covers a number
and its definition; it is taken once for each thing that is new.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from disttrace.journal import format as fmt


class Definitions:
    """Numbers of strings, stacks, threads and whatever else has a definition.

    Who inherits this says how a definition is written, and whether there is a journal yet.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()  # a signal handler may record while its thread records
        self.threads_seen: list[dict[str, Any]] = []  # before there was a journal
        self._strings: dict[str, int] = {}
        self._stacks: dict[tuple[Any, ...], int] = {}
        self._numbers: dict[str, itertools.count[int]] = {}
        self._thread_numbers = itertools.count()
        self._thread_known: dict[int, tuple[int, int | None]] = {}  # ident: (number, native id)

    @property
    def is_open(self) -> bool:
        """Whether this process has a journal."""
        raise NotImplementedError

    def write_definition(self, record: Mapping[str, Any]) -> None:
        """Put a definition into the journal."""
        raise NotImplementedError

    def define(self, kind: str, /, *, n: int | None = None, **keys: Any) -> int:
        """Write a definition under a fresh number, or complete number ``n``."""
        with self.lock:
            if n is None:
                n = next(self._numbers.setdefault(kind, itertools.count(1)))
            self.write_definition({fmt.DEF: kind, "n": n, **keys})
        return n

    def string(self, text: str) -> int:
        """Number of an interned string."""
        n = self._strings.get(text)
        if n is None:
            with self.lock:
                n = self._strings[text] = self.define("string", v=text)
        return n

    def stack(self, frames: Sequence[tuple[str, int, str]]) -> int:
        """Number of an interned stack of (file, line, function), innermost first."""
        key = tuple(frames)
        n = self._stacks.get(key)
        if n is None:
            with self.lock:
                numbered = [[self.string(f), line, self.string(name)] for f, line, name in frames]
                n = self._stacks[key] = self.define("stack", frames=numbered)
        return n

    def thread_number(self, ident: int, name: str, native: int | None) -> int:
        """Number of any thread; an ident that is used again comes with another native id."""
        with self.lock:
            known = self._thread_known.get(ident)
            if known is not None and (native is None or known[1] in (None, native)):
                return known[0]
            number = next(self._thread_numbers)
            self._thread_known[ident] = number, native
            record = {fmt.DEF: "thread", "n": number, "name": name, "native": native}
            if self.is_open:
                self.write_definition(record)
            else:
                self.threads_seen.append(record)
        return number

    def forget_definitions(self) -> None:
        """After fork: the numbers are the parent's."""
        self.threads_seen.clear()
        self._strings.clear()
        self._stacks.clear()
        self._numbers.clear()
        self._thread_known.clear()
        self._thread_numbers = itertools.count()
