"""Which store an object is: its server, and every prefix on the way there."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from typing import Any

from disttrace.capture.objects.registry import Registry
from disttrace.journal import format as fmt
from disttrace.recording.recorder import Recorder

# repr of a TCPStore's client: the only place that shows the address really connected to.
_REMOTE = re.compile(r"remote=\[?(?:::ffff:)?([^\]]+?)\]?:(\d+)\b")


@dataclass(slots=True, eq=False)
class StoreEntry:
    """A store as its definition says it."""

    n: int
    name: str
    base: int | None
    prefix: list[str | None]
    keys: dict[str, Any] = field(default_factory=dict)

    @property
    def root(self) -> int:
        """The number of the store at the bottom of the chain."""
        return self.n if self.base is None else self.base


class Stores:
    """Numbers the stores of this process and follows chains of prefixes.

    A prefix can be read nowhere afterwards, so the chain is collected while it is built; of a store
    that was made before tracing started the prefix stays unknown.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._registry: Registry[StoreEntry] = Registry()
        self._definitions: dict[int, dict[str, Any]] = {}
        self.get, self.entries = self._registry.get, self._registry.entries

    def of(self, store: Any) -> StoreEntry:
        """The entry of ``store``, registered if it was never seen."""
        entry = self._registry.get(id(store))
        return entry if entry is not None else self._register(store)

    def constructing(self, store: Any, kind: str, **keys: Any) -> StoreEntry:
        """A base store whose constructor is about to run."""
        return self._define(store, kind, _name(kind, keys), None, [], keys)

    def constructed(self, entry: StoreEntry, **keys: Any) -> None:
        """Its constructor returned: port and address are known now."""
        entry.keys.update({k: v for k, v in keys.items() if v is not None})
        entry.name = _name(entry.keys.get("type", ""), entry.keys)
        self._write(entry)

    def prefixed(self, store: Any, prefix: str | None, underlying: Any) -> StoreEntry:
        """A PrefixStore over ``underlying``."""
        base = self.of(underlying)
        return self._define(
            store,
            "PrefixStore",
            base.name,
            base.root,
            [*base.prefix, prefix],
            {key: number for key, number in base.keys.items() if key == "connection"},
        )

    def clone(self, store: Any, original: Any) -> StoreEntry:
        """The same place by a connection of its own: no call over it waits for the original's."""
        known = self.of(original)
        keys = {"connection": len(self._definitions) + 1}
        return self._define(
            store, known.keys["type"], known.name, known.root, list(known.prefix), keys
        )

    def definitions(self) -> list[dict[str, Any]]:
        """Every definition so far, for the journal of a forked child."""
        return list(self._definitions.values())

    def _register(self, store: Any) -> StoreEntry:
        kind = type(store).__name__
        underlying = getattr(store, "underlying_store", None)
        if underlying is not None:
            return self.prefixed(store, None, underlying)
        return self._define(store, kind, "", None, [], known_keys(store))

    def _define(
        self,
        store: Any,
        kind: str,
        name: str,
        base: int | None,
        prefix: list[str | None],
        keys: dict[str, Any],
    ) -> StoreEntry:
        n = len(self._definitions) + 1
        entry = StoreEntry(n, name, base, prefix, {"type": kind, **keys})
        if not name:
            entry.name = _name(kind, entry.keys)
        self._registry.add(store, entry)
        self._write(entry)
        return entry

    def _write(self, entry: StoreEntry) -> None:
        record = {"name": entry.name, "base": entry.base, "prefix": entry.prefix, **entry.keys}
        self._definitions[entry.n] = {fmt.DEF: "store", "n": entry.n, **record}
        self._recorder.define("store", n=entry.n, **record)


def known_keys(store: Any) -> dict[str, Any]:
    """What a live store says of itself."""
    keys: dict[str, Any] = {}
    for name in ("host", "port", "path"):
        try:
            keys[name] = getattr(store, name)
        except Exception:  # another kind of store, or a Python subclass that raises
            continue
    found = _REMOTE.search(repr(store)) if "port" in keys else None
    if found:
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
