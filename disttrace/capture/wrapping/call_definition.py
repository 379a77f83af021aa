"""Defines the call of a signature that was not seen before, whichever part it came through."""

from __future__ import annotations

from typing import Any, Protocol

from disttrace.capture.calls.arguments import Signature
from disttrace.capture.objects.groups import GroupEntry
from disttrace.capture.wrapping.context import Capture
from disttrace.journal.format import MESSAGE, ON_DEVICE
from disttrace.recording.interning import Made
from disttrace.recording.operation import Counter

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
        new = not capture.recorder.exhausted
        self._counter = _counter(row, entry, signature, backend, new)
        self._keys: dict[str, Any] = {
            "kind": row.kind,
            "group": entry.n,
            "backend": backend,
            "device": device if device != ANYWHERE else None,
            "async": asynchronous,
            "peer": signature.peer,
            "tag": signature.tag,
            "origin": origin,
            "shapes": signature.shapes,
            "dtypes": signature.dtypes,
            "bytes": signature.bytes,
            "splits": signature.splits,
            "reduce_op": signature.reduce_op if "reduce" in row.op else None,
            "root": signature.root,
            "args": signature.args,
        }

    def define(self, stack: int | None) -> Made:
        """The call with its signature, or without what varies, and that for the begin record."""
        return self._capture.recorder.call(
            self._op,
            synchronous=self._asynchronous is False,
            counter=self._counter,
            stack=stack,
            **self._keys,
        )


def _counter(
    row: Named, entry: GroupEntry, signature: Signature, backend: str | None, new: bool
) -> Counter | None:
    if row.kind != MESSAGE:
        return entry.collective_counter(backend)
    if signature.peer is None:
        return None  # any source: numbered when the source is known
    if signature.tag is None and backend not in ON_DEVICE:
        return None  # the stream it belongs to is not known
    return entry.stream_counter(row.op, signature.peer, signature.tag, backend, new=new)
