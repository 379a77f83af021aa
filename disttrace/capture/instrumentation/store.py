"""Instrumentation of store operations: every method of Store, on any store class.

Keys and sizes are recorded, never values.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

from torch._C._distributed_c10d import Store

from disttrace import foreign
from disttrace.capture.hot_path import native, plain
from disttrace.capture.objects.groups import nanoseconds
from disttrace.capture.objects.stores import StoreEntry
from disttrace.capture.wrapping.context import Capture
from disttrace.capture.wrapping.wrappers import Args, Function, Kwargs, Part, after
from disttrace.journal.format import STORE
from disttrace.recording.operation import KeyTexts, Operation, ThreadState, size

PART = "store operations"


class StoreMethod(NamedTuple):
    """One method of Store; ``values`` is the position of what it stores, 0 if it stores nothing."""

    method: str
    has_key: bool = True
    values: int = 0
    returns_value: bool = False


ROWS: tuple[StoreMethod, ...] = (
    StoreMethod("set", values=1),
    StoreMethod("get", returns_value=True),
    StoreMethod("add"),
    StoreMethod("check"),
    StoreMethod("compare_set", values=2, returns_value=True),
    StoreMethod("wait"),
    StoreMethod("delete_key"),
    StoreMethod("num_keys", has_key=False),
    StoreMethod("append", values=1),
    StoreMethod("multi_get", returns_value=True),
    StoreMethod("multi_set", values=1),
    StoreMethod("barrier"),
    StoreMethod("list_keys", has_key=False),
    StoreMethod("queue_push", values=1),
    StoreMethod("queue_pop", returns_value=True),
    StoreMethod("queue_len"),
)


def install(capture: Capture) -> None:
    """Patch every method in Store; subclasses.py does it in those that define their own."""
    parts = [(row, StorePart(capture, row)) for row in ROWS]
    capture.unordered.add(PART)

    def limited(result: Any, store: Any, timeout: Any) -> None:
        capture.stores.limited(store, nanoseconds(timeout))

    def instrument(owner: type) -> None:
        for row, part in parts:
            wrapper = functools.partial(part.wrapper, owner)
            capture.engine.attribute(PART, owner, row.method, wrapper)
        capture.engine.attribute(PART, owner, "clone", after(capture, PART, capture.stores.clone))
        capture.engine.attribute(PART, owner, "set_timeout", after(capture, PART, limited))

    capture.instrument(Store, by=instrument)


class StorePart(Part):
    """One method: its wrapper, and what that leaves to ordinary functions."""

    def __init__(self, capture: Capture, row: StoreMethod) -> None:
        super().__init__(capture, PART)
        self._row = row
        self._told = functools.partial(key_and_size, capture.keys, row)

    def wrapper(self, owner: type, original: Function) -> Any:
        row = self._row
        made = native.wrapper(
            self,
            original,
            row.method,
            numbers=self.capture.stores.numbers,
            describe=lambda *args, **kwargs: self._told(args, kwargs),
            keys=self.capture.keys.made if row.has_key else None,
            value=row.values,
            returns_value=row.returns_value,
        )
        if made is not None:
            return made
        returns = row.returns_value
        return plain.storing(self, original, owner, row.method, told=self._told, returns=returns)

    def begin(
        self, thread: ThreadState, frame: Any, store: Any, /, *args: Any, **kwargs: Any
    ) -> Operation:
        entry, told = self.capture.stores.of(store), self._told(args, kwargs)
        return begin(self.capture, frame, self._row, entry, "python", told)

    def returned(self, thread: ThreadState, operation: Operation, result: Any) -> None:
        extra = b',"n":%d' % size(result) if self._row.returns_value else b""
        self.capture.recorder.end(operation, extra)


def begin(
    capture: Capture, frame: Any, row: StoreMethod, store: StoreEntry, origin: str, told: bytes
) -> Operation:
    """Begin an operation of ``store``; ``told`` is of ``key_and_size``."""
    keys = {"kind": STORE, "store": store.n, "origin": origin, "async": False}
    return capture.begin(frame, f"store.{row.method}", (store.n, origin), keys, told)


def key_and_size(keys: KeyTexts, row: StoreMethod, args: Args, kwargs: Kwargs) -> bytes:
    """Keys of the begin record: which key, and how many bytes go there."""
    extra = b""
    if row.has_key:
        key: Any = args[0] if args else kwargs.get("key")
        if type(key) is str:
            known = keys.known
            extra = b',"k":' + (known(key) or keys.make(key))
        elif foreign.is_a(key, str):
            extra = b',"k":' + keys.make(foreign.plain(key))
        elif foreign.is_a(key, (list, tuple)):
            texts = [foreign.plain(one) for one in foreign.items_of(key) if foreign.is_a(one, str)]
            extra = b',"k":' + keys.make(texts)
    if len(args) > (row.values or 1):
        if row.values:
            extra += b',"n":%d' % size(args[row.values])
        elif row.method == "wait" and (limit := nanoseconds(args[1])):
            extra += b',"a":{"args":{"timeout":%d.%09d}}' % divmod(limit, 1_000_000_000)
    return extra
