"""Instrumentation of collectives and messages: methods of ProcessGroup and Backend."""

from __future__ import annotations

import functools
from typing import Any

import torch._C._distributed_c10d as c10d

from disttrace.capture.calls import arguments
from disttrace.capture.calls.operations import ROWS, Method
from disttrace.capture.hot_path import call_key, native, plain
from disttrace.capture.wrapping.call_definition import define
from disttrace.capture.wrapping.context import Capture
from disttrace.capture.wrapping.wrappers import Function, Part, wrap
from disttrace.journal.originals import get_ident
from disttrace.recording.interning import VARYING, added
from disttrace.recording.operation import Operation, ThreadState

PART = "collectives and messages"

# torch's public functions that wait themselves, by name: their options say nothing of it.
_WAITING = frozenset({"send", "recv", "monitored_barrier"})
_LEAVING = frozenset({"isend", "irecv"})


def install(capture: Capture) -> None:
    """Patch every method that this torch has."""
    native.read_options(capture, PART)
    parts = [(row, GroupPart(capture, row)) for row in ROWS]

    def instrument(owner: type) -> None:
        for row, part in parts:

            def make(original: Function, row: Method = row, part: GroupPart = part) -> Any:
                return part.wrapper(owner, capture.looking(row, original))

            if owner is not c10d.Backend and issubclass(owner, c10d.Backend):
                make = functools.partial(_called_back, capture, row, make)
            capture.engine.attribute(PART, owner, row.method, make)

    capture.instrument(c10d.ProcessGroup, c10d.Backend, by=instrument)


class GroupPart(Part):
    """One method: its wrapper, and what that leaves to ordinary functions."""

    origin = "python"
    tells = False
    """Whether ``returned`` gets whatever a call returns."""

    def __init__(self, capture: Capture, row: Method, name: str = PART) -> None:
        super().__init__(capture, name)
        self._row = row
        options_tell = hasattr(c10d.AllreduceOptions, "asyncOp")
        self._read_key = call_key.key_of(row) if options_tell else call_key.any_key
        self.asynchronous = None if options_tell else _async_local

    def wrapper(self, owner: type, original: Function) -> Any:
        row, numbers = self._row, self.capture.groups.numbers
        further: dict[str, Any] = {"asynchronous": self.asynchronous, "tells": self.tells}
        made = native.wrapper(
            self, original, row.method, numbers=numbers, varying=self.varying, **further
        )
        if made is not None:
            return made
        further["read_key"] = self._read_key
        return plain.issuing(self, original, owner, row.method, **further)

    def begin(
        self, thread: ThreadState, frame: Any, owner: Any, /, *args: Any, **kwargs: Any
    ) -> Operation:
        capture, row = self.capture, self._row
        read = arguments.read(row, args, kwargs)
        group, asynchronous = self.issues(owner, read, frame)
        entry = capture.groups.of(group)
        stack = capture.sites.stack(frame)
        call, extra = define(capture, row, group, entry, read, asynchronous, self.origin, stack)
        return capture.recorder.begin(thread, call, extra)

    def issues(
        self, owner: Any, read: arguments.CallArguments, frame: Any
    ) -> tuple[Any, bool | None]:
        """On which group, and whether the waiting is left to the caller."""
        return owner, _asynchronous(self.capture, read, frame)

    def varying(self, *args: Any, **kwargs: Any) -> bytes:
        """What the begin record of a call adds that is known but for its lengths."""
        read = arguments.read(self._row, args, kwargs)
        return added({k: v for k in VARYING if (v := getattr(read, k, None)) is not None})

    def returned(self, thread: ThreadState, operation: Operation, work: Any) -> None:
        recorder, works = self.capture.recorder, self.capture.works
        if thread.batches is not None and operation.call.group in thread.batches:
            recorder.issued(operation)
            thread.batches[operation.call.group].append(operation)
        elif work is not None:
            recorder.issued(operation)
            works.add(work, operation)
        elif operation.call.device_ends:
            # NCCL waits for a synchronous call inside C++, and that only orders streams.
            recorder.issued(operation)
            works.device.add(operation, None, None)
        else:
            recorder.end(operation)


class _CalledBack(Part):
    def failed(self, thread: ThreadState, operation: Operation, error: BaseException) -> None:
        self.capture.issuing.pop(get_ident(), None)  # such an operation has no post-hook
        super().failed(thread, operation, error)


def _called_back(capture: Capture, row: Method, make: Function, original: Function) -> Function:
    """The wrapper of a Python backend's method: ``make(original)``, unless C++ calls it for an
    operation that the group's pre-hook has put on record."""
    recorded, issuing = make(original), capture.issuing

    def begun(thread: ThreadState, backend: Any, *_: Any) -> Operation | None:
        """What a hook has begun on this thread, if it is this method's: a stale one is not."""
        operation = issuing.get(get_ident(), (None, ()))[0]
        if operation is None or operation.call.op != row.op:
            return None
        entry = capture.groups.get(id(backend))
        return operation if entry is not None and entry.n == operation.call.group else None

    return wrap(_CalledBack(capture, PART), recorded, begun, lambda *_: None)


def _asynchronous(capture: Capture, signature: arguments.CallArguments, frame: Any) -> bool | None:
    """Whether the public call left the waiting to its caller; None where that cannot be known."""
    name = frame.f_code.co_name if frame is not None else ""
    if not (name and capture.sites.is_torch(frame.f_code.co_filename)):
        return bool(name != "monitored_barrier")  # the method itself was called
    if name in _WAITING:
        return False
    if name in _LEAVING:
        return not _sends_and_waits(capture, frame)
    if signature.asynchronous is not None:
        return signature.asynchronous
    return _async_local(frame)


def _sends_and_waits(capture: Capture, frame: Any) -> bool:
    """Whether torch's own ``send`` or ``recv`` called this ``isend``, and waits for it itself."""
    caller = frame.f_back
    if caller is not None and caller.f_code.co_name == "wrapper":  # torch's decorator
        caller = caller.f_back
    if caller is None or caller.f_code.co_name not in _WAITING:
        return False
    return capture.sites.is_torch(caller.f_code.co_filename)


def _async_local(frame: Any) -> bool | None:
    """The ``async_op`` argument of the calling torch function, where options do not carry it."""
    value = frame.f_locals.get("async_op") if frame is not None else None
    return value if isinstance(value, bool) else None
