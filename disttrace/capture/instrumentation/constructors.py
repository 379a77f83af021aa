"""Instrumentation of constructors: stores, groups and backends, which tell where members meet.

A store's constructor connects and waits for the others, a backend's exchanges addresses: both can
hang, so both are operations. Wrapping them costs no time.
"""

from __future__ import annotations

import datetime
import functools
import sys
from collections.abc import Callable
from typing import Any

from disttrace.capture.calls.call_table import Calls
from disttrace.capture.objects.stores import StoreEntry, known_keys
from disttrace.capture.wrapping.context import Capture, wrap
from disttrace.journal.format import CONSTRUCTOR
from disttrace.recording.operation import Operation, ThreadState

PART = "constructors"

# Positional names of the arguments worth keeping.
_STORE_ARGUMENTS: dict[str, tuple[str, ...]] = {
    "TCPStore": (
        "host_name",
        "port",
        "world_size",
        "is_master",
        "timeout",
        "wait_for_workers",
        "multi_tenant",
        "master_listen_fd",
        "use_libuv",
    ),
    "FileStore": ("file_name", "world_size"),
    "HashStore": (),
}
_BACKENDS = ("ProcessGroupGloo", "ProcessGroupNCCL", "ProcessGroupUCC", "ProcessGroupXCCL")
_RENAMED = {"host_name": "host", "file_name": "path"}


def install(capture: Capture) -> None:
    """Patch the constructors that this torch has."""
    import torch._C._distributed_c10d as c10d

    calls = Calls(capture.sites)
    capture.on_fork.append(calls.forget)
    patch = capture.engine.attribute
    for name, arguments in _STORE_ARGUMENTS.items():
        owner = getattr(c10d, name, None)
        if owner is not None:
            patch(
                PART,
                owner,
                "__init__",
                functools.partial(_store, capture, calls, arguments),
            )
    patch(PART, c10d.PrefixStore, "__init__", functools.partial(_prefix, capture))
    patch(PART, c10d.ProcessGroup, "__init__", functools.partial(_group, capture))
    for name in _BACKENDS:
        owner = getattr(c10d, name, None)
        if owner is not None:
            patch(PART, owner, "__init__", functools.partial(_backend, capture, calls))
    patch(PART, c10d.ProcessGroup, "_get_backend", functools.partial(_lookup, capture))
    for name, key in (("_set_group_name", "name"), ("_set_group_desc", "desc")):
        patch(PART, c10d.ProcessGroup, name, functools.partial(_label, capture, key))
    patch(
        PART,
        c10d.ProcessGroup,
        "_register_backend",
        functools.partial(_registration, capture),
    )


def _store(
    capture: Capture, calls: Calls, names: tuple[str, ...], original: Callable[..., Any]
) -> Callable[..., Any]:
    stores = capture.stores

    def begin(
        thread: ThreadState, store: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Operation:
        given = arguments_of(names, args, kwargs)
        where: dict[str, Any] = {
            key: given[key] for key in ("host", "port", "path") if key in given
        }
        if "is_master" in given:
            where["server"] = given["is_master"]
        entry = stores.constructing(store, type(store).__name__, **where)
        # The name that people know, whatever Python subclass this is.
        op = next(c.__name__ for c in type(store).__mro__ if c.__name__ in _STORE_ARGUMENTS)
        return _begin(capture, calls, op, given, store=entry.n)

    def done(thread: ThreadState, operation: Operation, store: Any, result: Any) -> None:
        capture.recorder.end(operation)
        entry = stores.of(store)
        seen = known_keys(store)
        if entry.keys.get("server"):
            seen.pop("address", None)
        stores.constructed(entry, **_changes(entry, seen))

    return wrap(capture, PART, original, begin, done)


def _changes(entry: StoreEntry, seen: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in seen.items() if entry.keys.get(key) != value}


def _backend(capture: Capture, calls: Calls, original: Callable[..., Any]) -> Callable[..., Any]:
    groups, stores = capture.groups, capture.stores
    names = ("store", "rank", "size", "timeout")
    # Until its constructor has returned, an object of C++ must not be asked anything: it crashes.
    pending: dict[int, tuple[Any, Any, Any]] = {}

    def begin(
        thread: ThreadState, backend: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Operation:
        named = dict(zip(names, args)) | kwargs
        given = arguments_of(names, args, kwargs)
        store = named.get("store")
        entry = stores.of(store) if store is not None else None
        pending[id(backend)] = (store, given.get("rank"), given.get("size"))
        number = entry.n if entry is not None else None
        return _begin(capture, calls, type(backend).__name__, given, store=number)

    def done(thread: ThreadState, operation: Operation, backend: Any, result: Any) -> None:
        capture.recorder.end(operation)
        groups.backend_made(backend, *pending.pop(id(backend)))

    return wrap(capture, PART, original, begin, done)


def _begin(
    capture: Capture, calls: Calls, op: str, given: dict[str, Any], *, store: int | None
) -> Operation:
    keys = {"kind": CONSTRUCTOR, "store": store, "args": given or None, "async": False}
    key = (store, tuple(sorted(map(str, given.items()))))
    frame = sys._getframe(3)
    return capture.begin_alone(calls, frame, op, key, keys)


def _prefix(capture: Capture, original: Callable[..., Any]) -> Callable[..., Any]:
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        try:
            named = dict(zip(("prefix", "store"), args)) | kwargs
            capture.stores.prefixed(self, named["prefix"], named["store"])
        except BaseException as error:
            capture.fail(PART, error)

    return __init__


def _group(capture: Capture, original: Callable[..., Any]) -> Callable[..., Any]:
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        try:
            names = ("rank", "size") if args and isinstance(args[0], int) else _GROUP
            named = dict(zip(names, args)) | kwargs
            capture.groups.group_made(
                self, named.get("store"), named.get("rank"), named.get("size")
            )
        except BaseException as error:
            capture.fail(PART, error)

    return __init__


_GROUP = ("store", "rank", "size")


def _label(capture: Capture, key: str, original: Callable[..., Any]) -> Callable[..., Any]:
    def label(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        try:
            groups = capture.groups
            groups.update(groups.of(self), **{key: args[0] if args else None})
        except BaseException as error:
            capture.fail(PART, error)
        return result

    return label


def _registration(capture: Capture, original: Callable[..., Any]) -> Callable[..., Any]:
    def _register_backend(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        try:
            named = dict(zip(("device", "backend_type", "backend"), args)) | kwargs
            backend = named.get("backend")
            name = _backend_label(named.get("backend_type"), backend)
            capture.groups.backend_registered(self, named["device"].type, name, backend)
        except BaseException as error:
            capture.fail(PART, error)
        return result

    return _register_backend


def _lookup(capture: Capture, original: Callable[..., Any]) -> Callable[..., Any]:
    """C++ may hand out a new object for a group's backend: used directly, it is that group."""
    groups = capture.groups

    def _get_backend(self: Any, *args: Any, **kwargs: Any) -> Any:
        backend = original(self, *args, **kwargs)
        try:
            if groups.get(id(backend)) is None:
                groups.backend_of(self, backend)
        except BaseException as error:
            capture.fail(PART, error)
        return backend

    return _get_backend


def _backend_label(backend_type: Any, backend: Any) -> str:
    """``gloo`` for the enumeration's GLOO; a custom backend's own name."""
    name = str(getattr(backend_type, "name", backend_type)).lower()
    if name in ("custom", "undefined") and backend is not None:
        try:
            return str(backend.name()).lower()
        except Exception:  # Python backends need not define it
            return type(backend).__name__.removeprefix("ProcessGroup").lower()
    return name


def arguments_of(
    names: tuple[str, ...], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> dict[str, Any]:
    """Arguments by name, those that JSON can hold; time-outs in seconds."""
    named = dict(zip(names, args)) | kwargs
    result: dict[str, Any] = {}
    for name, value in named.items():
        plain = plain_value(value)
        if plain is not None:
            result[_RENAMED.get(name, name)] = plain
    return result


def plain_value(value: Any) -> Any:
    """``value`` if it says something by itself, else None.

    A subclass of the program's may do anything when it is asked: the base class is.
    """
    if isinstance(value, datetime.timedelta):
        return datetime.timedelta.total_seconds(value)
    if value is True or value is False:
        return value
    for kind, read in _SCALARS:
        if isinstance(value, kind):
            return read(value)
    if not isinstance(value, (list, tuple)):
        return None
    items = list(list.__iter__(value) if isinstance(value, list) else tuple.__iter__(value))
    if all(isinstance(item, int) for item in items):
        return [int.__index__(item) for item in items]
    if all(isinstance(item, (list, tuple)) for item in items):
        inner = [plain_value(item) for item in items]
        return inner if None not in inner else None
    return None


_SCALARS: tuple[tuple[type, Callable[[Any], Any]], ...] = (
    (int, int.__index__),
    (float, float.__float__),
    (str, str.__str__),
)
