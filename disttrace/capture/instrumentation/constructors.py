"""Instrumentation of constructors: stores, groups and backends, which tell where members meet.

A store's constructor connects and waits for the others, a backend's exchanges addresses: both can
hang, so both are operations. Wrapping them costs no time.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from typing import Any

import torch._C._distributed_c10d as c10d

from disttrace import foreign
from disttrace.capture.objects.groups import backend_name, changes_limit, nanoseconds
from disttrace.capture.objects.stores import known_keys
from disttrace.capture.wrapping.context import Capture
from disttrace.capture.wrapping.wrappers import Args, Function, Kwargs, Part, after, wrap
from disttrace.journal.format import CONSTRUCTOR
from disttrace.recording.operation import Operation, ThreadState

PART = "constructors"

# Positional names of the arguments worth keeping.
_STORE_ARGUMENTS = {
    "TCPStore": "host_name port world_size is_master timeout wait_for_workers multi_tenant "
    "master_listen_fd use_libuv",
    "FileStore": "file_name world_size",
    "HashStore": "",
}
BACKENDS = {
    "gloo": "ProcessGroupGloo",
    "nccl": "ProcessGroupNCCL",
    "xccl": "ProcessGroupXCCL",
    "ucc": "ProcessGroupUCC",
}
_GROUP = ("store", "rank", "size")
_LIMITED = ("ProcessGroupGloo", "ProcessGroupNCCL")
"""Classes that have a method to change the time limit of their operations."""
_RENAMED = {"host_name": "host", "file_name": "path"}
_PLACE = {"host": "host", "port": "port", "path": "path", "is_master": "server"}


def install(capture: Capture) -> None:
    """Patch the constructors that this torch has."""
    patch, part = functools.partial(capture.engine.attribute, PART), Part(capture, PART)
    for name, arguments in _STORE_ARGUMENTS.items():
        owner = getattr(c10d, name, None)
        if owner is not None:
            patch(owner, "__init__", functools.partial(_store, part, owner, arguments.split()))
    for name in BACKENDS.values():
        owner = getattr(c10d, name, None)
        if owner is not None:
            patch(owner, "__init__", functools.partial(_backend, part, owner))
    groups, stores = capture.groups, capture.stores

    def prefixed(result: Any, store: Any, *args: Any, **kwargs: Any) -> None:
        named = dict(zip(("prefix", "store"), args)) | kwargs
        stores.prefixed(store, named["prefix"], named["store"])

    def made(result: Any, group: Any, *args: Any, **kwargs: Any) -> None:
        names = ("rank", "size") if args and isinstance(args[0], int) else _GROUP
        named = dict(zip(names, args)) | kwargs
        groups.group_made(group, named.get("store"), named.get("rank"), named.get("size"))

    def label(key: str, result: Any, group: Any, *args: Any, **kwargs: Any) -> None:
        groups.update(groups.of(group), **{key: args[0] if args else None})

    def registered(result: Any, group: Any, *args: Any, **kwargs: Any) -> None:
        named = dict(zip(("device", "backend_type", "backend"), args)) | kwargs
        backend = named.get("backend")
        kind = named.get("backend_type")
        name = str(getattr(kind, "name", kind)).lower()  # `gloo` for the enumeration's GLOO
        name = (name in ("custom", "undefined") and backend_name(backend)) or name
        groups.backend_registered(group, named["device"].type, name, backend)

    def limited(result: Any, group: Any, timeout: Any) -> None:
        groups.limited(group, nanoseconds(timeout))

    owners = (getattr(c10d, name, object) for name in _LIMITED)
    rows: tuple[tuple[Any, str, Callable[..., object]], ...] = (
        (c10d.PrefixStore, "__init__", prefixed),
        (c10d.ProcessGroup, "__init__", made),
        (c10d.ProcessGroup, "_set_group_name", functools.partial(label, "name")),
        (c10d.ProcessGroup, "_set_group_desc", functools.partial(label, "desc")),
        (c10d.ProcessGroup, "_register_backend", registered),
        (c10d.ProcessGroup, "set_timeout", limited),
        (c10d.Backend, "set_timeout", limited),
        *((owner, "_set_default_timeout", limited) for owner in owners if changes_limit(owner)),
    )
    for owner, name, look in rows:
        if hasattr(owner, name):
            patch(owner, name, after(capture, PART, look))


def _store(part: Part, owner: type, names: Sequence[str], original: Function) -> Function:
    capture, stores = part.capture, part.capture.stores

    def begin(thread: ThreadState, store: Any, args: Args, kwargs: Kwargs, frame: Any) -> Operation:
        given = arguments_of(names, args, kwargs)
        where = {told: given[key] for key, told in _PLACE.items() if key in given}
        entry = stores.constructing(store, type(store).__name__, **where)
        if "path" in given:
            given |= _written(given["path"])
        # The name that people know, whatever Python subclass this is.
        return _begin(capture, frame, owner.__name__, given, store=entry.n)

    def done(thread: ThreadState, operation: Operation, store: Any, *_: Any) -> None:
        capture.recorder.end(operation)
        stores.constructed(stores.of(store), known_keys(store))

    return wrap(part, original, begin, done, owner=owner, name="__init__")


def _written(path: object) -> dict[str, Any]:
    """When a file that is there already, and not empty, was last written, in unix nanoseconds."""
    try:
        found = os.stat(str(path))
    except foreign.ours(OSError, ValueError):
        return {}
    return {"written": found.st_mtime_ns} if found.st_size else {}


def _backend(part: Part, owner: type, original: Function) -> Function:
    capture, groups, stores = part.capture, part.capture.groups, part.capture.stores
    # Until its constructor has returned, an object of C++ must not be asked anything: it crashes.
    pending: dict[int, tuple[Any, Any, Any]] = {}

    def begin(thread: ThreadState, made: Any, args: Args, kwargs: Kwargs, frame: Any) -> Operation:
        named = dict(zip(_GROUP, args)) | kwargs
        given = arguments_of((*_GROUP, "timeout"), args, kwargs)
        store = named.get("store")
        number = stores.of(store).n if store is not None else None
        pending[id(made)] = (store, given.get("rank"), given.get("size"))
        return _begin(capture, frame, type(made).__name__, given, store=number)

    def done(thread: ThreadState, operation: Operation, backend: Any, *_: Any) -> None:
        capture.recorder.end(operation)
        where = pending.pop(id(backend))
        groups.backend_made(backend, *where, by_hand=not thread.parents)

    return wrap(part, original, begin, done, owner=owner, name="__init__")


def _begin(capture: Capture, frame: Any, op: str, given: Kwargs, *, store: int | None) -> Operation:
    keys = {"kind": CONSTRUCTOR, "store": store, "args": given or None, "async": False}
    key = (store, tuple(sorted(map(str, given.items()))))
    return capture.begin(frame, op, key, keys)


def arguments_of(names: Sequence[str], args: Args, kwargs: Kwargs) -> dict[str, Any]:
    """Arguments by name, those that JSON can hold; time-outs in seconds."""
    named = dict(zip(names, args)) | kwargs
    told = {_RENAMED.get(name, name): foreign.plain(value) for name, value in named.items()}
    return {name: value for name, value in told.items() if value is not None}
