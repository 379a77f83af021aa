"""Instrumentation of store operations: every method of Store, on any store class.

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
from disttrace.recording.operation import KeyTexts, Operation, ThreadState

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

    parts = [(row, Part(capture, row)) for row in ROWS]

    def instrument(owner: type) -> None:
        if issubclass(owner, Store):
            for row, part in parts:
                wrapper = functools.partial(part.wrapper, owner)
                capture.engine.attribute(PART, owner, row.method, wrapper)
            capture.engine.attribute(PART, owner, "clone", functools.partial(_clone, capture))

    capture.instrumenters.append(instrument)
    instrument(Store)


class Part:
    """One method: its wrapper, and what that leaves to ordinary functions (see ``plain.Part``)."""

    def __init__(self, capture: Capture, row: Row) -> None:
        self._capture = capture
        self._row = row
        self._calls = Calls(capture.sites)
        self._describe = functools.partial(key_and_size, capture.keys, row)
        capture.on_fork.append(self._calls.forget)

    def wrapper(self, owner: type, original: Callable[..., Any]) -> Any:
        """What stands in the place of ``original`` on ``owner``."""
        row = self._row
        form = {
            "keys": self._capture.keys.made if row.has_key else None,
            "value": row.values or 0,
            "returns_value": row.returns_value,
        }
        return wrapper.storing(
            original,
            self,
            self._capture,
            self._calls,
            self._describe,
            form=form,
            owner=owner,
            name=row.method,
        )

    def begin(
        self,
        thread: ThreadState,
        store: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        frame: Any,
    ) -> Operation:
        capture = self._capture
        call, extra = capture.recorder.call(
            f"store.{self._row.method}",
            synchronous=True,
            counter=None,
            kind=STORE,
            store=capture.stores.of(store).n,
            stack=capture.sites.stack(frame),
            origin="python",
            **{"async": False},
        )
        return capture.recorder.begin(thread, call, extra + self._describe(args, kwargs))

    def returned(self, thread: ThreadState, operation: Operation, result: Any) -> None:
        extra = b',"n":%d' % size(result) if self._row.returns_value else b""
        self._capture.recorder.end(operation, extra)

    def failed(self, thread: ThreadState, operation: Operation, error: BaseException) -> None:
        self._capture.recorder.failed(operation, error, on_issue=True)

    def fail(self, error: BaseException) -> None:
        self._capture.fail(PART, error)


def _clone(capture: Capture, original: Callable[..., Any]) -> Callable[..., Any]:
    """A clone is the same place by another connection."""

    def clone(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        try:
            capture.stores.clone(result, self)
        except BaseException as error:
            capture.fail(PART, error)
        return result

    return clone


def key_and_size(keys: KeyTexts, row: Row, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
    """Keys of the begin record: which key, and how many bytes go there."""
    extra = b""
    if row.has_key:
        key = args[0] if args else kwargs.get("key")
        if type(key) is str:
            extra = b',"k":' + (keys.known(key) or keys.make(key))
        else:
            extra = b',"k":' + keys.make(key) if isinstance(key, list) else _several(keys, key)
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
