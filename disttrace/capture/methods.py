"""The door for collectives and messages: methods of ProcessGroup and Backend."""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable, Hashable
from typing import Any

from disttrace.capture import arguments
from disttrace.capture.callback import called_back
from disttrace.capture.calls import Calls
from disttrace.capture.context import Capture
from disttrace.capture.describe import Described
from disttrace.capture.operations import ROWS, Row
from disttrace.operation import Call, Operation, ThreadState

PART = "collectives and messages"

# torch's public functions that wait themselves, by name: their options say nothing of it.
_WAITING = frozenset({"send", "recv", "monitored_barrier"})
_LEAVING = frozenset({"isend", "irecv"})


def install(capture: Capture) -> None:
    """Patch every method that this torch has."""
    from torch._C._distributed_c10d import Backend, ProcessGroup

    calls = Calls(capture.sites)
    capture.on_fork.append(calls.forget)

    def adopt(owner: type) -> None:
        if issubclass(owner, (ProcessGroup, Backend)):
            for row in ROWS:
                door = functools.partial(_door, capture, calls, row)
                if owner is not Backend and issubclass(owner, Backend):
                    door = functools.partial(called_back, capture, PART, row, door)
                capture.engine.attribute(PART, owner, row.method, door)

    capture.adopters.append(adopt)
    for owner in (ProcessGroup, Backend):
        adopt(owner)


def _door(capture: Capture, calls: Calls, row: Row, original: Callable[..., Any]) -> Any:
    """The hot path. It is ``context.wrap`` written out, because each function call counts here."""
    recorder, groups, works, fail = capture.recorder, capture.groups, capture.works, capture.fail
    threads, begin_record, clock = recorder.threads, recorder.begin, time.perf_counter_ns
    get_group, get_call, site = groups.get, calls.get, capture.sites.key
    deep_site = capture.sites.deep_key
    key_of, method, getframe = arguments.key_of(row), row.method, sys._getframe
    extra_key = None if _options_tell() else _async_local

    def begin_slowly(
        thread: ThreadState, group: Any, args: tuple[Any, ...], kwargs: dict[str, Any], frame: Any
    ) -> Operation:
        """A call that was not seen before, or comes from deep inside torch."""
        entry = get_group(id(group)) or groups.of(group)
        signature: Hashable = (method, entry, key_of(args, kwargs))
        if extra_key is not None:
            signature = (signature, extra_key(frame))
        read = arguments.read(row, args, kwargs)
        asynchronous = _asynchronous(capture, read, frame)
        described = Described(capture, row, group, entry, read, asynchronous, "python")
        call, extra = calls.find(frame, signature, described.define, described.overflow)
        return begin_record(thread, call, extra)

    def returned(thread: ThreadState, operation: Operation, work: Any) -> None:
        """The call of an operation that is not synchronous returned, or gave no Work."""
        if thread.batches is not None and operation.call.group in thread.batches:
            recorder.issued(operation)
            thread.batches[operation.call.group].append(operation)
        elif work is not None:
            recorder.issued(operation)
            works.add(work, operation)
        elif operation.call.device_ends:
            # NCCL waits for a synchronous call inside C++, and that only orders streams.
            recorder.issued(operation)
            works.on_device(operation, None)
        else:
            recorder.end(operation)

    def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
        thread = threads.state
        if thread.inside:
            return original(self, *args, **kwargs)
        operation = None
        try:
            frame = getframe(1)
            signature: Hashable = (method, get_group(id(self)), key_of(args, kwargs))
            if extra_key is not None:
                signature = (signature, extra_key(frame))
            call = get_call((site(frame), signature))
            if type(call) is int:  # the user's frame lies deeper: dist.send calls dist.isend
                call = get_call((deep_site(frame, call), signature))
            if type(call) is Call:
                operation = begin_record(thread, call)
            else:
                operation = begin_slowly(thread, self, args, kwargs, frame)
            del frame
        except BaseException as error:
            fail(PART, error)
        if operation is None:
            return original(self, *args, **kwargs)
        try:
            thread.inside = True
            work = original(self, *args, **kwargs)
        except BaseException as error:
            thread.inside = False
            capture.failed(PART, operation, error)
            raise
        thread.inside = False
        try:
            if work is not None and operation.call.synchronous:
                operation.issued = clock() - operation.begin
                operation.work = id(work)
                thread.sync = operation
            else:
                returned(thread, operation, work)
        except BaseException as error:
            fail(PART, error)
        return work

    return wrapper


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
