"""``disttrace.operation``: communication that is not c10d's, told by whoever makes it."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterable, Mapping
from types import FrameType
from typing import Any

from disttrace.capture.objects.groups import GroupEntry
from disttrace.capture.wrapping.context import Capture
from disttrace.journal.format import COLLECTIVE, COMPOSED
from disttrace.recording.interning import Made
from disttrace.recording.operation import Operation, retail

PART = "declared operations"
BACKEND = "declared"
"""It counts by itself: a library of its own need not keep the order of c10d's collectives."""

_PLAIN = (bool, int, float, str, type(None))


class Declared(contextlib.ContextDecorator):
    """An operation called ``name``; nothing while tracing is off.

    Without ``peers`` it is a collective of the group, compared with the other members' by its
    number among those declared; with them it is in no sequence.
    """

    def __init__(
        self,
        current: Callable[[], Capture | None],
        name: str,
        group: Any,
        peers: Iterable[int] | None,
        fields: Mapping[str, Any],
    ) -> None:
        self._current, self._name, self._group = current, name, group
        self._peers = None if peers is None else sorted(peers)
        self._fields = fields
        self._capture: Capture | None = None
        self._operation: Operation | None = None

    def _recreate_cm(self) -> Declared:
        return Declared(self._current, self._name, self._group, self._peers, self._fields)

    def __enter__(self) -> None:
        self._capture = capture = self._current()
        if capture is None:
            return
        frame = sys._getframe().f_back
        if frame is not None and frame.f_code.co_filename == contextlib.__file__:
            frame = frame.f_back  # the caller of a decorated function
        self._operation = capture.guard(PART, self._enter, capture, frame)

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        operation, self._operation = self._operation, None
        if self._capture is not None:
            self._capture.leave(PART, operation, error)

    def _enter(self, capture: Capture, frame: FrameType | None) -> Operation:
        return self.begin(capture, frame, self.entry(capture))

    def entry(self, capture: Capture) -> GroupEntry | None:
        """The group whose members take part; None where it is none of c10d's."""
        return capture.groups.passed(self._group)

    def begin(
        self,
        capture: Capture,
        frame: FrameType | None,
        entry: GroupEntry | None,
        *,
        backend: str = BACKEND,
        device: str | None = None,
    ) -> Operation:
        """Put its begin on record, called at ``frame``; what the thread issues until
        ``Capture.leave`` is part of it. ``device``: of which it is only enqueued.
        """
        together = entry is not None and self._peers is None
        counter = entry.collective_counter(backend) if entry is not None and together else None
        args: dict[str, Any] = {
            key: value if isinstance(value, _PLAIN) else str(value)
            for key, value in self._fields.items()
        }
        if self._peers is not None:
            args["ranks"] = self._peers
        n = None if entry is None else entry.n
        keys: dict[str, Any] = {
            "kind": COLLECTIVE if together else COMPOSED,
            "group": n,
            "backend": backend,
            "device": device,
            "async": device is not None,
            "origin": "python",
            "args": args or None,
        }

        def define(stack: int | None) -> Made:
            return capture.recorder.call(
                self._name, synchronous=device is None, counter=counter, stack=stack, **keys
            )

        key = (self._name, backend, device, n, repr(args))
        call, signature = capture.calls.find(frame, key, define)
        thread = capture.recorder.threads.state
        operation = capture.recorder.begin(thread, call, signature)
        thread.parents.append(operation.n)
        retail(thread)
        return operation
