"""The door for store operations: every method of Store, on any store class.

Keys and sizes are recorded, never values.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from disttrace.capture.calls import Calls
from disttrace.capture.context import Capture, wrap
from disttrace.journal.format import STORE
from disttrace.operation import Call, Operation, ThreadState, json_text

PART = "store operations"


@dataclass(frozen=True, slots=True)
class Row:
    """One method of Store; ``values`` is the position of what it stores, if it stores something."""

    method: str
    has_key: bool = True
    values: int | None = None
    returns_value: bool = False


ROWS: tuple[Row, ...] = (
    Row("set", values=1),
    Row("get", returns_value=True),
    Row("add"),
    Row("check"),
    Row("compare_set", values=2, returns_value=True),
    Row("wait"),
    Row("delete_key"),
    Row("num_keys", has_key=False),
    Row("append", values=1),
    Row("multi_get", returns_value=True),
    Row("multi_set", values=1),
    Row("barrier"),
    Row("list_keys", has_key=False),
    Row("queue_push", values=1),
    Row("queue_pop", returns_value=True),
    Row("queue_len"),
)


def install(capture: Capture) -> None:
    """Patch every method in Store; subclasses.py does it in those that define their own."""
    from torch._C._distributed_c10d import Store

    calls = Calls(capture.sites)
    capture.on_fork.append(calls.forget)

    def adopt(owner: type) -> None:
        if issubclass(owner, Store):
            for row in ROWS:
                door = functools.partial(_door, capture, calls, row)
                capture.engine.attribute(PART, owner, row.method, door)
            capture.engine.attribute(PART, owner, "clone", functools.partial(_clone, capture))

    capture.adopters.append(adopt)
    adopt(Store)


def _door(
    capture: Capture, calls: Calls, row: Row, original: Callable[..., Any]
) -> Callable[..., Any]:
    recorder, stores = capture.recorder, capture.stores
    get_store, get_call, site = stores.get, calls.get, capture.sites.key
    begin_record, end_record = recorder.begin, recorder.end
    getframe = sys._getframe
    method, op = row.method, f"store.{row.method}"

    def begin(
        thread: ThreadState, store: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Operation:
        entry = get_store(id(store)) or stores.of(store)
        frame = getframe(2)
        signature = (method, entry.n)
        extra = key_and_size(row, args, kwargs)
        call = get_call((site(frame), signature))
        if type(call) is not Call:
            call, _ = calls.find(frame, signature, lambda stack: define(entry.n, stack))
        return begin_record(thread, call, extra)

    def define(store: int, stack: int | None) -> Call:
        return recorder.call(
            op,
            synchronous=True,
            counter=None,
            kind=STORE,
            store=store,
            stack=stack,
            origin="python",
            **{"async": False},
        )

    def done(thread: ThreadState, operation: Operation, store: Any, result: Any) -> None:
        if row.returns_value:
            end_record(operation, b',"n":%d' % size(result))
        else:
            end_record(operation)

    return wrap(capture, PART, original, begin, done)


def _clone(capture: Capture, original: Callable[..., Any]) -> Callable[..., Any]:
    """A clone is the same place by another object."""

    def clone(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        try:
            capture.stores.same_as(result, self)
        except BaseException as error:
            capture.fail(PART, error)
        return result

    return clone


def key_and_size(row: Row, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
    """Keys of the begin record: which key, and how many bytes go there."""
    extra = b""
    if row.has_key:
        key = args[0] if args else kwargs.get("key")
        extra = b',"k":' + json_text(key) if isinstance(key, (str, list)) else _several(key)
    if row.values is not None and len(args) > row.values:
        extra += b',"n":%d' % size(args[row.values])
    return extra


def _several(keys: Any) -> bytes:
    """Keys in another container than a list."""
    try:
        return b',"k":' + json_text([str(key) for key in keys])
    except TypeError:  # no keys at all: torch will raise
        return b""


def size(value: Any) -> int:
    """Bytes of a value, or of all of them."""
    if isinstance(value, (bytes, bytearray)):
        return len(value)
    if isinstance(value, str):
        return len(value) if value.isascii() else len(value.encode("utf-8", "replace"))
    if isinstance(value, (list, tuple)):
        return sum(size(item) for item in value)
    return 0
