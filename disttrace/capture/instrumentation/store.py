"""The door for store operations: every method of Store, on any store class.

Keys and sizes are recorded, never values.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from disttrace.capture.calls.call_table import Calls
from disttrace.capture.hot_path import wrapper
from disttrace.capture.wrapping.context import Capture
from disttrace.journal.format import STORE
from disttrace.recording.operation import Call, KeyTexts, Operation, ThreadState
from disttrace.recording.recorder import FLAT_BEGIN_UNCOUNTED

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

    doors = [(row, Door(capture, row)) for row in ROWS]

    def adopt(owner: type) -> None:
        if issubclass(owner, Store):
            for row, door in doors:
                capture.engine.attribute(PART, owner, row.method, door.wrapper)
            capture.engine.attribute(PART, owner, "clone", functools.partial(_clone, capture))

    capture.adopters.append(adopt)
    adopt(Store)


class Door:
    """The door of one method: its wrapper, and what that leaves to ordinary functions."""

    def __init__(self, capture: Capture, row: Row) -> None:
        self._capture = capture
        self._row = row
        frames = capture.sites.direct_frames
        self._calls = Calls(capture.sites, frames=frames)
        self._make = wrapper.store_maker(
            frames, size, capture.keys, key=row.has_key, value=row.values, returns=row.returns_value
        )
        capture.on_fork.append(self._calls.forget)

    def wrapper(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """What stands in the place of ``original``."""
        capture = self._capture
        return wrapper.wrapped(
            self._make, original, self, capture, PART, capture.stores.get, self._calls.get
        )

    def begin(
        self,
        thread: ThreadState,
        store: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        frame: Any,
    ) -> Operation:
        """See ``flat.Door``."""
        entry = self._capture.stores.of(store)
        call, _ = self._calls.find(frame, (entry,), lambda stack: self._define(entry.n, stack))
        return self._capture.recorder.begin(
            thread, call, key_and_size(self._capture.keys, self._row, args, kwargs)
        )

    def returned(
        self, thread: ThreadState, n: int, operation: Operation | None, result: Any
    ) -> None:
        """The call returned, and its begin was not on the flat path, or is no longer there."""
        recorder = self._capture.recorder
        extra = b',"n":%d' % size(result) if self._row.returns_value else b""
        recorder.end(operation or recorder.unfolded(thread, n), extra)

    def failed(
        self, thread: ThreadState, n: int, operation: Operation | None, error: BaseException
    ) -> None:
        """See ``flat.Door``."""
        self._capture.failed_flat(PART, thread, n, operation, error)

    def _define(self, store: int, stack: int | None) -> Call:
        row = self._row
        call = self._capture.recorder.call(
            f"store.{row.method}",
            synchronous=True,
            counter=None,
            kind=STORE,
            store=store,
            stack=stack,
            origin="python",
            **{"async": False},
        )
        key = b',"k":%%b' if row.has_key else b""
        value = b',"n":%%d' if row.values else b""
        call.flat = (FLAT_BEGIN_UNCOUNTED + key + value + b"}\n") % call.n
        return call


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


def key_and_size(keys: KeyTexts, row: Row, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
    """Keys of the begin record: which key, and how many bytes go there."""
    extra = b""
    if row.has_key:
        key = args[0] if args else kwargs.get("key")
        extra = b',"k":' + keys.make(key) if isinstance(key, (str, list)) else _several(keys, key)
    if row.values is not None and len(args) > row.values:
        extra += b',"n":%d' % size(args[row.values])
    return extra


def _several(texts: KeyTexts, keys: Any) -> bytes:
    """Keys in another container than a list."""
    try:
        return b',"k":' + texts.make([str(key) for key in keys])
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
