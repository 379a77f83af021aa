"""Instrumentation of store traffic from C++: the backend gets a proxy for the real store.

Gloo exchanges its addresses through the store, from C++, where no patched method is passed: whom a
rank has not found yet can only be seen here. The proxy must live exactly as long as the backend.
When its Python half dies first, C++ meets an INTERNAL ASSERT in the user's call; when it outlives
the backend, it pins the store's port.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch._C._distributed_c10d as c10d

from disttrace.capture.instrumentation import store
from disttrace.capture.instrumentation.constructors import BACKENDS
from disttrace.capture.instrumentation.store import ROWS, StoreMethod, key_and_size
from disttrace.capture.objects.registry import Registry
from disttrace.capture.wrapping.context import Capture
from disttrace.capture.wrapping.wrappers import Args, Kwargs, Part, after, passed_on, wrap
from disttrace.recording.operation import Operation, ThreadState, size

PART = "store traffic from C++"

# Of C++ through and through.
_STORES = ("PrefixStore", "TCPStore", "FileStore", "HashStore")
# Passed on without a record: they ask nothing of the server that could hang.
_PLAIN = ("set_timeout", "has_extended_api", "clone")


def install(capture: Capture) -> None:
    """Swap the store in the constructors that the setting names, before other parts patch Store's
    methods."""
    chosen = capture.store_trace
    # Gloo's lazy connections come from threads of its own, at any time: there the real store stays.
    if os.environ.get("TORCH_GLOO_LAZY_INIT", "0") not in ("", "0"):
        chosen -= {"gloo"}
    kinds = [kind for name, kind in BACKENDS.items() if name in chosen and hasattr(c10d, kind)]
    owners = [getattr(c10d, kind) for kind in kinds]
    if owners:
        lives = _Lives(capture, _proxy_class(capture))
        for owner in owners:
            capture.engine.attribute(PART, owner, "__init__", lives.constructor)
        claim = after(capture, PART, lives.claim)
        capture.engine.attribute(PART, c10d.ProcessGroup, "_register_backend", claim)


class _Lives:
    """Keeps each proxy for as long as its backend, or the group that took the backend in."""

    def __init__(self, capture: Capture, proxy: type) -> None:
        self._capture = capture
        self._proxy = proxy
        self._kept: Registry[Any] = Registry()
        self._on = True
        # No new ones: those in use stay, as their backends do.
        capture.engine.on_undo(PART, "store proxies to come", lambda: setattr(self, "_on", False))

    def constructor(self, original: Callable[..., Any]) -> Callable[..., Any]:

        def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
            made = guard(PART, lives.swap, args, kwargs)
            if made is None:
                original(self, *args, **kwargs)
                return
            proxy, args, kwargs = made
            original(self, *args, **kwargs)
            guard(PART, lives.keep, self, proxy)

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
        self._entry = capture.stores.of(store)
        if hasattr(store, "timeout"):
            set_timeout(self, store.timeout)

    construct: Callable[[Any], None] = base.__dict__["__init__"]
    set_timeout = base.set_timeout
    methods: dict[str, Any] = {"__init__": __init__}
    for row in ROWS:
        if hasattr(base, row.method):
            methods[row.method] = _recorded(capture, row, getattr(base, row.method))
    for name in _PLAIN:
        if hasattr(base, name):
            methods[name] = passed_on(getattr(base, name))
    return type("DelegatingStore", (base,), methods)


def _recorded(
    capture: Capture, row: StoreMethod, original: Callable[..., Any]
) -> Callable[..., Any]:
    def begin(thread: ThreadState, proxy: Any, args: Args, kwargs: Kwargs, frame: Any) -> Operation:
        told = key_and_size(capture.keys, row, args, kwargs)
        return store.begin(capture, frame, row, proxy._entry, "c++", told)

    def returned(thread: ThreadState, operation: Operation, _: Any, __: Any, result: Any) -> None:
        capture.recorder.end(operation, b',"n":%d' % size(result) if row.returns_value else b"")

    part = Part(capture, PART, on_issue=False)
    return wrap(part, passed_on(original), begin, returned, nested=True)
