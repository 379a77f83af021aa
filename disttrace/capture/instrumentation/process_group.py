"""The door for collectives and messages: methods of ProcessGroup and Backend."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable
from typing import Any

from disttrace import errors
from disttrace.capture.calls import arguments
from disttrace.capture.calls.call_table import Calls
from disttrace.capture.calls.operations import ROWS, Row
from disttrace.capture.hot_path import call_key, wrapper
from disttrace.capture.instrumentation.callback import called_back
from disttrace.capture.objects.groups import GroupEntry
from disttrace.capture.wrapping.call_definition import Described
from disttrace.capture.wrapping.context import Capture
from disttrace.recording.operation import Call, Operation, ThreadState

PART = "collectives and messages"

# torch's public functions that wait themselves, by name: their options say nothing of it.
_WAITING = frozenset({"send", "recv", "monitored_barrier"})
_LEAVING = frozenset({"isend", "irecv"})


def install(capture: Capture) -> None:
    """Patch every method that this torch has."""
    from torch._C._distributed_c10d import Backend, ProcessGroup

    tell = _options_tell()
    doors = [(row, Door(capture, row, options_tell=tell)) for row in ROWS]

    def adopt(owner: type) -> None:
        if issubclass(owner, (ProcessGroup, Backend)):
            for row, door in doors:
                wrapper = door.wrapper
                if owner is not Backend and issubclass(owner, Backend):
                    wrapper = functools.partial(called_back, capture, PART, row, door.wrapper)
                capture.engine.attribute(PART, owner, row.method, wrapper)

    capture.adopters.append(adopt)
    for owner in (ProcessGroup, Backend):
        adopt(owner)


class Door:
    """The door of one method: its wrapper, and what that leaves to ordinary functions."""

    def __init__(self, capture: Capture, row: Row, *, options_tell: bool) -> None:
        self._capture = capture
        self._row = row
        self._calls = Calls(capture.sites)
        usual = call_key.key_of(row, options_tell=options_tell)
        any_form = call_key.key_of(row, options_tell=options_tell, usual=False)
        self._make = wrapper.method_maker(usual, capture.sites.frames, asynchronous=_async_local)
        self._usual = wrapper.signature_maker(usual, asynchronous=_async_local)
        self._any = wrapper.signature_maker(any_form, asynchronous=_async_local)
        capture.on_fork.append(self._calls.forget)

    def wrapper(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """What stands in the place of ``original``."""
        capture = self._capture
        return wrapper.wrapped(
            self._make, original, self, capture, PART, capture.groups.get, self._calls.get
        )

    def begin(
        self,
        thread: ThreadState,
        group: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        frame: Any,
    ) -> Operation:
        """See ``flat.Door``."""
        capture, row, sites = self._capture, self._row, self._capture.sites
        entry = capture.groups.of(group)
        signature = self._signature(entry, args, kwargs, frame)
        call = self._calls.get(signature + sites.key(frame))
        if isinstance(call, int):
            call = self._calls.get(signature + sites.deep_key(frame, call))
        if isinstance(call, Call):
            return capture.recorder.begin(thread, call)
        read = arguments.read(row, args, kwargs)
        asynchronous = _asynchronous(capture, read, frame)
        described = Described(capture, row, group, entry, read, asynchronous, "python")
        call, extra = self._calls.find(frame, signature, described.define, described.overflow)
        return capture.recorder.begin(thread, call, extra)

    def _signature(
        self, entry: GroupEntry, args: tuple[Any, ...], kwargs: dict[str, Any], frame: Any
    ) -> tuple[Hashable, ...]:
        try:
            usual: tuple[Hashable, ...] = self._usual(entry, args, kwargs, frame)
        except call_key.MISFIT as error:
            if not errors.is_ours(error):
                raise
        else:
            return usual
        any_form: tuple[Hashable, ...] = self._any(entry, args, kwargs, frame)
        return any_form

    def returned(self, thread: ThreadState, n: int, operation: Operation | None, work: Any) -> None:
        """The call returned, and the flat path has no room for what comes now."""
        recorder, works = self._capture.recorder, self._capture.works
        if operation is None:
            operation = recorder.unfolded(thread, n)
        if work is not None and operation.call.synchronous:
            if operation.call.device_ends:
                recorder.issued(operation)  # its wait orders streams, and the device goes on
            else:
                operation.issued = recorder.since(operation)
            operation.work = id(work)
            thread.will_wait(operation)
        elif thread.batches is not None and operation.call.group in thread.batches:
            recorder.issued(operation)
            thread.batches[operation.call.group].append(operation)
        elif work is not None:
            recorder.issued(operation)
            works.add(work, operation)
        elif operation.call.device_ends:
            # NCCL waits for a synchronous call inside C++, and that only orders streams.
            recorder.issued(operation)
            works.on_device(operation, None, None)
        else:
            recorder.end(operation)

    def failed(
        self, thread: ThreadState, n: int, operation: Operation | None, error: BaseException
    ) -> None:
        """See ``flat.Door``."""
        self._capture.failed_flat(PART, thread, n, operation, error)


def _asynchronous(capture: Capture, signature: arguments.Signature, frame: Any) -> bool | None:
    """Whether the public call left the waiting to its caller; None where that cannot be known."""
    if not capture.sites.is_torch(frame):
        return frame.f_code.co_name not in ("monitored_barrier",)  # the method itself was called
    if frame.f_code.co_name in _WAITING:
        return False
    if frame.f_code.co_name in _LEAVING:
        return not _sends_and_waits(capture, frame)
    if signature.asynchronous is not None:
        return signature.asynchronous
    return _async_local(frame)


def _sends_and_waits(capture: Capture, frame: Any) -> bool:
    """Whether torch's own ``send`` or ``recv`` called this ``isend``, and waits for it itself."""
    caller = frame.f_back
    if caller is not None and caller.f_code.co_name == "wrapper":  # torch's decorator
        caller = caller.f_back
    return (
        caller is not None and caller.f_code.co_name in _WAITING and capture.sites.is_torch(caller)
    )


def _async_local(frame: Any) -> bool | None:
    """The ``async_op`` argument of the calling torch function, where options do not carry it."""
    value = frame.f_locals.get("async_op")
    return value if isinstance(value, bool) else None


def _options_tell() -> bool:
    from torch._C._distributed_c10d import AllreduceOptions

    return hasattr(AllreduceOptions, "asyncOp")
