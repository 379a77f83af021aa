"""Defines the call of a signature that was not seen before, whichever door it came through."""

from __future__ import annotations

from typing import Any, Protocol

from disttrace.capture.calls.arguments import Signature
from disttrace.capture.calls.call_table import Made, changed
from disttrace.capture.objects.groups import GroupEntry
from disttrace.capture.wrapping.context import Capture
from disttrace.journal.format import MESSAGE, ON_DEVICE
from disttrace.recording.operation import Call, Counter, json_text

_VARIABLE = ("shapes", "dtypes", "bytes", "splits", "reduce_op", "root")
ANYWHERE = "*"  # a backend used directly serves whatever device it is given


class Named(Protocol):
    """The row of a table of operations."""

    @property
    def op(self) -> str:
        """The operation's public name."""

    @property
    def kind(self) -> str:
        """``collective`` or ``message``."""


class Described:
    """One signature, as a call record says it."""

    def __init__(
        self,
        capture: Capture,
        row: Named,
        group: Any,
        entry: GroupEntry,
        signature: Signature,
        asynchronous: bool | None,
        origin: str,
    ) -> None:
        self._capture = capture
        self._op = row.op
        if entry.keys.get("ranks") is None or not entry.backends:
            capture.groups.refresh(group, entry)
        device = signature.device
        if device is None and row.op in ("barrier", "monitored_barrier"):
            device = entry.barrier_device()
        backend = entry.backend(device)
        self._asynchronous = asynchronous
        self._counter = _counter(row, entry, signature, backend)
        self._keys: dict[str, Any] = {
            "kind": row.kind,
            "group": entry.n,
            "backend": backend,
            "device": device if device != ANYWHERE else None,
            "async": asynchronous,
            "shapes": signature.shapes,
            "dtypes": signature.dtypes,
            "bytes": signature.bytes,
            "splits": signature.splits,
            "reduce_op": signature.reduce_op if "reduce" in row.op else None,
            "root": signature.root,
            "peer": signature.peer,
            "tag": signature.tag,
            "origin": origin,
            "args": signature.args,
        }

    def define(self, stack: int | None) -> Call:
        """The call with its whole signature."""
        return self._make(self._keys, stack)

    def overflow(self, stack: int | None) -> Made:
        """The call without what varies, and what varies for the begin record."""
        fixed = {k: v for k, v in self._keys.items() if k not in (*_VARIABLE, "args")}
        call = self._make(fixed, stack)
        return call, b',"a":' + json_text(changed(self._keys, _VARIABLE))

    def _make(self, keys: dict[str, Any], stack: int | None) -> Call:
        return self._capture.recorder.call(
            self._op,
            synchronous=self._asynchronous is False,
            counter=self._counter,
            stack=stack,
            **keys,
        )


def _counter(
    row: Named, entry: GroupEntry, signature: Signature, backend: str | None
) -> Counter | None:
    if row.kind != MESSAGE:
        return entry.collective_counter(backend)
    if signature.peer is None:
        return None  # any source: numbered when the source is known
    if signature.tag is None and backend not in ON_DEVICE:
        return None  # the stream it belongs to is not known
    return entry.stream_counter(row.op, signature.peer, signature.tag, backend)
