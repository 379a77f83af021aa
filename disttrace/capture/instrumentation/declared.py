"""What the program declares: ``disttrace.annotate`` and ``dist.record_comm``, a name around
operations, and ``disttrace.operation``, communication that is not c10d's.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable, Mapping
from types import FrameType
from typing import Any

from disttrace.capture.objects.groups import GroupEntry
from disttrace.capture.wrapping import context
from disttrace.capture.wrapping.context import Capture
from disttrace.journal.format import COLLECTIVE, COMPOSED
from disttrace.recording.operation import Operation

PART = "names of communication"
_OP = "record_comm"
_SETTER = "_set_comm_profiling_name"
BACKEND = "declared"
"""It counts by itself: a library of its own need not keep the order of c10d's collectives."""

_PLAIN = (bool, int, float, str, type(None))


class _Block(contextlib.ContextDecorator):
    """A block of the program that is an operation while tracing is on. Each call of a decorated
    function has an object of its own (``_recreate_cm``)."""

    PART: str

    _capture: Capture | None = None
    _operation: Operation | None = None

    def __enter__(self) -> None:
        self._capture = capture = context.current
        if capture is None:
            return
        frame = sys._getframe().f_back
        if frame is not None and frame.f_code.co_filename == contextlib.__file__:
            frame = frame.f_back  # the caller of a decorated function
        self._operation = capture.guard(self.PART, self._begin, capture, frame)

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        operation, self._operation = self._operation, None
        if self._capture is not None:
            self._capture.leave(self.PART, operation, error)

    def _begin(self, capture: Capture, frame: FrameType | None) -> Operation:
        raise NotImplementedError


class Annotated(_Block):
    """A composed operation ``annotate`` called ``name``."""

    PART = "annotations"

    def __init__(self, name: str) -> None:
        self._name = name

    def _recreate_cm(self) -> Annotated:
        return Annotated(self._name)

    def _begin(self, capture: Capture, frame: FrameType | None) -> Operation:
        return capture.begin_composed(frame, "annotate", self._name, args={}, name=self._name)


class Declared(_Block):
    """An operation ``name``: a collective in a sequence of its own, or with ``peers`` in none."""

    PART = "declared operations"

    def __init__(
        self, name: str, group: Any, peers: Iterable[int] | None, fields: Mapping[str, Any]
    ) -> None:
        self._name, self._group = name, group
        self._peers = None if peers is None else sorted(peers)
        self._fields = fields

    def _recreate_cm(self) -> Declared:
        return Declared(self._name, self._group, self._peers, self._fields)

    def _begin(self, capture: Capture, frame: FrameType | None) -> Operation:
        return self.begin(capture, frame, capture.groups.passed(self._group))

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
            "args": args or None,
        }
        operation = capture.begin(
            frame,
            self._name,
            (backend, device, n, repr(args)),
            keys,
            counter=entry.counter(backend) if entry is not None and together else None,
            synchronous=device is None,
        )
        capture.step_in(operation)
        return operation


def install(capture: Capture) -> None:
    """Patch what ``record_comm`` calls, on a torch that has it: it becomes a composed operation."""
    import torch._C._distributed_c10d as c10d

    original = getattr(c10d, _SETTER, None)
    if original is None:
        return
    # The context manager's frame calls twice: at its begin, and to put the former name back.
    around: dict[int, Operation] = {}
    capture.on_fork.append(around.clear)

    def named(frame: FrameType | None, name: str) -> None:
        if frame is None or frame.f_code.co_name != _OP:
            return
        if id(frame) in around:
            capture.leave(PART, around.pop(id(frame)))
        else:
            around[id(frame)] = capture.begin_composed(frame, _OP, name, keys={"name": name})

    def set_name(name: str) -> None:
        original(name)
        capture.guard(PART, named, sys._getframe().f_back, str(name))

    capture.engine.value(PART, c10d, _SETTER, set_name)
