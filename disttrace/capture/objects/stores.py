"""Which store an object is: its server, and every prefix on the way there."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from disttrace import foreign
from disttrace.capture.objects.registry import GONE, Registry
from disttrace.journal import format as fmt
from disttrace.recording.recorder import Recorder

# repr of a TCPStore's client: the only place that shows the address really connected to.
_REMOTE = re.compile(r"remote=\[?(?:::ffff:)?([^\]]{1,255}?)\]?:(\d{1,5})\b")


@dataclass(slots=True, eq=False)
class StoreEntry:
    """A store as it is defined. ``n`` is negative where the journal defines no more."""

    n: int
    name: str
    base: StoreEntry | None
    prefix: list[str | None]
    keys: dict[str, Any] = field(default_factory=dict)

    def definition(self) -> dict[str, Any]:
        base = None if self.base is None else self.base.n
        return {"name": self.name, "base": base, "prefix": self.prefix, **self.keys}

    @property
    def root(self) -> StoreEntry:
        """The store at the bottom of the chain."""
        return self if self.base is None else self.base


class Stores:
    """Numbers the stores of this process and follows chains of prefixes, while they are built: a
    prefix can be read nowhere afterwards. What is kept of a store goes away with it, and with the
    groups that meet there."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._registry: Registry[StoreEntry] = Registry()
        self._numbers = itertools.count(1)
        self._beyond = itertools.count(-1, -1)
        self.get, self.entries = self._registry.get, self._registry.entries
        self.numbers = self._registry.numbers
        self._forget_at = GONE

    def of(self, store: Any) -> StoreEntry:
        """The entry of ``store``, registered if it was never seen."""
        entry = self._registry.get(id(store))
        if entry is not None:
            return entry
        try:
            underlying = foreign.of_torch(store, "underlying_store")
        except foreign.ours(AttributeError):
            underlying = None
        if underlying is not None:
            return self.prefixed(store, None, underlying)
        return self.constructing(store, foreign.type_name(store), **known_keys(store))

    def constructing(self, store: Any, kind: str, **keys: Any) -> StoreEntry:
        """A base store whose constructor is about to run."""
        known = {"type": kind, **keys}
        return self._add(store, StoreEntry(self._number(), _name(kind, keys), None, [], known))

    def constructed(self, entry: StoreEntry, keys: dict[str, Any]) -> None:
        """Its constructor returned: port and address are known now."""
        if entry.keys.get("server"):
            keys.pop("address", None)
        entry.keys.update({k: v for k, v in keys.items() if v is not None})
        entry.name = _name(entry.keys.get("type", ""), entry.keys)
        self._write(entry)

    def prefixed(self, store: Any, prefix: str | None, underlying: Any) -> StoreEntry:
        base = self.of(underlying)
        keys = {"type": "PrefixStore"}
        if "connection" in base.keys:
            keys["connection"] = base.keys["connection"]
        path = [*base.prefix, prefix]
        return self._add(store, StoreEntry(self._number(), base.name, base.root, path, keys))

    def clone(self, store: Any, original: Any) -> StoreEntry:
        """The same place by a connection of its own: no call over it waits for the original's."""
        known = self.of(original)
        n = self._number()
        keys = {"type": known.keys["type"], "connection": n}
        return self._add(store, StoreEntry(n, known.name, known.root, list(known.prefix), keys))

    def limited(self, store: Any, limit_ns: int | None) -> None:
        """Its questions wait for so long from now on, and so do those of what stands on it."""
        root = self.of(store).root
        if limit_ns is not None and root.keys.get("timeout") != limit_ns:
            root.keys["timeout"] = limit_ns
            self._write(root)

    def definitions(self, others: Iterable[StoreEntry]) -> list[dict[str, Any]]:
        """Definitions of living stores and of ``others``, for a forked child's journal."""
        entries = {entry.n: entry for entry in (*list(self.entries.values()), *others)}
        bases = {e.base.n: e.base for e in entries.values() if e.base is not None}
        known = sorted((entries | bases).items())
        return [{fmt.DEF: "store", "n": n, **e.definition()} for n, e in known if n > 0]

    def _add(self, store: Any, entry: StoreEntry) -> StoreEntry:
        if entry.n > self._forget_at:
            alive = set(self.numbers.values())
            self._forget_at = entry.n + len(alive) + GONE
            self._recorder.forget_calls("store", alive)
        self._registry.add(store, entry)
        self._write(entry)
        return entry

    def _number(self) -> int:
        return next(self._beyond if self._recorder.exhausted else self._numbers)

    def _write(self, entry: StoreEntry) -> None:
        if entry.n > 0:
            self._recorder.define("store", n=entry.n, **entry.definition())


def known_keys(store: Any) -> dict[str, Any]:
    """What a live store says of itself."""
    keys: dict[str, Any] = {}
    for name in ("host", "port", "path"):  # of another kind of store, or a subclass with its own
        if (value := foreign.attempt(foreign.of_torch, store, name)) is not None:
            keys[name] = value
    text = foreign.of_torch(store, "__repr__")() if "port" in keys else ""
    found = _REMOTE.search(text)
    # Where addresses have no names (no DNS), torch shows memory that nobody has written.
    if found and found[2] == str(keys["port"]):
        keys["address"] = f"{found[1]}:{found[2]}"
    return keys


def _name(kind: str, keys: dict[str, Any]) -> str:
    if "port" in keys:
        return f"tcp://{keys.get('host')}:{keys['port']}"
    if "path" in keys:
        return f"file://{os.path.abspath(str(keys['path']))}"
    if kind == "HashStore":
        return f"hash://{os.getpid()}"
    return f"python://{kind}/{os.getpid()}"
