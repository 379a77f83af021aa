"""Instrumentation of store operations: every method of Store, on any store class; and of store
traffic from C++, where the backend gets a proxy for the real store.

Keys and sizes are recorded, never values.

Gloo exchanges its addresses through the store, from C++, where no patched method is passed: whom a
rank has not found yet can only be seen in a proxy. It must live exactly as long as the backend.
When its Python half dies first, C++ meets an INTERNAL ASSERT in the user's call; when it outlives
the backend, it pins the store's port.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any, NamedTuple

import torch._C._distributed_c10d as c10d
from torch._C._distributed_c10d import Store

from disttrace import foreign
from disttrace.capture.instrumentation.constructors import BACKENDS
from disttrace.capture.objects.groups import nanoseconds
from disttrace.capture.objects.registry import Registry
from disttrace.capture.wrapping import hot_path
from disttrace.capture.wrapping.context import Capture
from disttrace.capture.wrapping.wrappers import Args, Function, Kwargs, Part, after, passed_on, wrap
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

    def __init__(self, capture: Capture, row: StoreMethod, *, from_cxx: bool = False) -> None:
        super().__init__(capture, FROM_CXX if from_cxx else PART, on_issue=not from_cxx)
        self._row = row
        self._origin = "c++" if from_cxx else "python"
        self._told = functools.partial(key_and_size, capture.keys, row)

    def wrapper(self, owner: type, original: Function) -> Any:
        row = self._row
        made = hot_path.native_wrapper(
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
        return hot_path.storing(self, original, owner, row.method, told=self._told, returns=returns)

    def begin(
        self, thread: ThreadState, frame: Any, store: Any, /, *args: Any, **kwargs: Any
    ) -> Operation:
        n, told = self.capture.stores.of(store).n, self._told(args, kwargs)
        keys = {"kind": STORE, "store": n, "origin": self._origin, "async": False}
        key = (n, self._origin)
        return self.capture.begin(frame, f"store.{self._row.method}", key, keys, told)

    def returned(self, thread: ThreadState, operation: Operation, result: Any) -> None:
        extra = b',"n":%d' % size(result) if self._row.returns_value else b""
        self.capture.recorder.end(operation, extra)


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


FROM_CXX = "store traffic from C++"

# Of C++ through and through.
_STORES = ("PrefixStore", "TCPStore", "FileStore", "HashStore")


def install_proxies(capture: Capture) -> None:
    """Swap the store in chosen constructors, before other parts patch Store's methods."""
    chosen = capture.store_trace
    # Gloo's lazy connections come from threads of its own, at any time: there the real store stays.
    if os.environ.get("TORCH_GLOO_LAZY_INIT", "0") not in ("", "0"):
        chosen -= {"gloo"}
    kinds = [kind for name, kind in BACKENDS.items() if name in chosen and hasattr(c10d, kind)]
    owners = [getattr(c10d, kind) for kind in kinds]
    if owners:
        lives = _Lives(capture, _proxy_class(capture))
        for owner in owners:
            capture.engine.attribute(FROM_CXX, owner, "__init__", lives.constructor)
        claim = after(capture, FROM_CXX, lives.claim)
        capture.engine.attribute(FROM_CXX, c10d.ProcessGroup, "_register_backend", claim)


class _Lives:
    """Keeps each proxy for as long as its backend, or the group that took the backend in."""

    def __init__(self, capture: Capture, proxy: type) -> None:
        self._capture = capture
        self._proxy = proxy
        self._kept: Registry[Any] = Registry()
        self._on = True
        # No new ones: those in use stay, as their backends do.
        capture.engine.on_undo(
            FROM_CXX, "store proxies to come", lambda: setattr(self, "_on", False)
        )

    def constructor(self, original: Callable[..., Any]) -> Callable[..., Any]:

        def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
            made = guard(FROM_CXX, lives.swap, args, kwargs)
            if made is None:
                original(self, *args, **kwargs)
                return
            proxy, args, kwargs = made
            original(self, *args, **kwargs)
            guard(FROM_CXX, lives.keep, self, proxy)

        lives, guard = self, self._capture.guard
        return __init__

    def claim(self, result: Any, group: Any, *args: Any, **kwargs: Any) -> None:
        """``_register_backend``: the group keeps the backend now; its Python object goes away."""
        backend = kwargs.get("backend", args[2] if len(args) > 2 else None)
        proxy = self._kept.get(id(backend))
        if proxy is not None:
            self.keep(group, proxy)

    def swap(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A proxy for the store among the arguments, and the arguments with it in its place."""
        store = args[0] if args else kwargs.get("store")
        if not self._on or all(type(store) is not getattr(c10d, name, None) for name in _STORES):
            return None  # a Python store is asked by its own methods
        if c10d.get_debug_level() == c10d.DebugLevel.DETAIL:
            return None  # backends are wrapped: their Python objects die long before they do
        proxy = self._proxy(store)
        if args:
            return proxy, (proxy, *args[1:]), kwargs
        return proxy, args, {**kwargs, "store": proxy}

    def keep(self, owner: Any, proxy: Any) -> None:
        """Hold ``proxy`` while ``owner`` lives."""
        held = self._kept.get(id(owner))
        self._kept.add(owner, proxy if held is None else (held, proxy))


def _proxy_class(capture: Capture) -> type:
    """A subclass of Store that passes everything on, and records what it passes on."""
    base = c10d.Store

    def __init__(self: Any, store: Any) -> None:
        construct(self)
        self.real = store
        if hasattr(store, "timeout"):
            set_timeout(self, store.timeout)

    construct: Callable[[Any], None] = base.__dict__["__init__"]
    set_timeout = base.set_timeout
    methods: dict[str, Any] = {"__init__": __init__}
    for row in ROWS:
        if hasattr(base, row.method):
            methods[row.method] = _recorded(capture, row, getattr(base, row.method))
    # Passed on without a record: they ask nothing of the server that could hang.
    for name in ("set_timeout", "has_extended_api", "clone"):
        if hasattr(base, name):
            methods[name] = passed_on(getattr(base, name))
    return type("DelegatingStore", (base,), methods)


def _recorded(
    capture: Capture, row: StoreMethod, original: Callable[..., Any]
) -> Callable[..., Any]:
    part = StorePart(capture, row, from_cxx=True)

    def begun(thread: ThreadState, proxy: Any, args: Args, kwargs: Kwargs, frame: Any) -> Operation:
        return part.begin(thread, frame, proxy.real, *args, **kwargs)

    def returned(thread: ThreadState, operation: Operation, _: Any, __: Any, result: Any) -> None:
        part.returned(thread, operation, result)

    return wrap(part, passed_on(original), begun, returned, nested=True)
