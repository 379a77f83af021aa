"""Knows c10d objects by number without owning them.

Stores keep ports, groups threads: all here are weak references or numbers. When the wrapper of a
C++ object dies, C++ may hand out a new one, and ``id()`` is reused: an entry goes with its object.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from disttrace import foreign

Entry = TypeVar("Entry")

GONE = 1000
"""Groups that are remembered after their objects, and stores that went before their calls do."""


class Registry(Generic[Entry]):
    """Entries by the identity of live objects. ``get(id(object))`` is the hot path's look-up."""

    def __init__(self) -> None:
        self.entries: dict[int, Entry] = {}
        self.numbers: dict[int, int] = {}  # of what has one in the journal, for the native core
        self._references: dict[int, list[weakref.ref[Any]]] = {}
        self.get: Callable[[int], Entry | None] = self.entries.get

    def add(self, thing: Any, entry: Entry) -> Entry:
        key = id(thing)
        entries, numbers, references = self.entries, self.numbers, self._references
        # At once, before its address is another's; and by C alone: nothing can be raised there,
        # as a handler in ours would. ``pop`` returns the reference where there is no such key.
        tables: tuple[dict[int, Any], ...] = (references, entries, numbers)
        try:
            references[key] = [weakref.ref(thing, functools.partial(t.pop, key)) for t in tables]
        except foreign.ours(TypeError):
            return entry  # a proxy, in the place of what is known
        entries[key] = entry
        numbers.pop(key, None)
        if (n := getattr(entry, "n", 0)) > 0:
            numbers[key] = n
        return entry
