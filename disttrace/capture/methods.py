"""The door for collectives and messages: methods of ProcessGroup and Backend."""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable, Hashable, Mapping
from typing import Any

from disttrace.capture import arguments
from disttrace.capture.calls import Calls, Made, changed
from disttrace.capture.context import Capture
from disttrace.capture.groups import ON_DEVICE, GroupEntry
from disttrace.capture.operations import ROWS, Row
from disttrace.journal.format import MESSAGE
from disttrace.recorder import Call, Counter, Operation, ThreadState, json_text

PART = "collectives and messages"

# torch's public functions that wait themselves, by name: their options say nothing of it.
_WAITING = frozenset({"send", "recv", "monitored_barrier"})
_VARIABLE = ("shapes", "dtypes", "bytes", "splits", "reduce_op", "root")


def install(capture: Capture) -> None:
    """Patch every method that this torch has."""
    from torch._C._distributed_c10d import Backend, ProcessGroup

    calls = Calls(capture.sites)
    capture.on_fork.append(calls.forget)
    for row in ROWS:
        for owner in (ProcessGroup, Backend):
            capture.engine.attribute(
                PART,
                owner,
                row.method,
                functools.partial(_door, capture, calls, row),
            )


def _door(capture: Capture, calls: Calls, row: Row, original: Callable[..., Any]) -> Any:
    """The hot path. It is ``context.wrap`` written out, because each function call counts here."""
    recorder, groups, works, fail = capture.recorder, capture.groups, capture.works, capture.fail
    threads, begin_record, clock = recorder.threads, recorder.begin, time.perf_counter_ns
    get_group, get_call, site = groups.get, calls.get, capture.sites.key
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
        describe = _Describe(capture, row, group, entry, args, kwargs, frame)
        call, extra = calls.find(frame, signature, describe.define, describe.overflow)
        return begin_record(thread, call, extra)

    def returned(operation: Operation, work: Any) -> None:
        """The call of an operation that is not synchronous returned, or gave no Work."""
        if work is not None:
            recorder.issued(operation)
            works.add(work, operation)
        elif operation.call.device_ends:
            # NCCL waits for a synchronous call inside C++, and that only orders streams.
            recorder.issued(operation)
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
                returned(operation, work)
        except BaseException as error:
            fail(PART, error)
        return work

    return wrapper


class _Describe:
    """Defines the call of one signature; made only for signatures not seen before."""

    def __init__(
        self,
        capture: Capture,
        row: Row,
        group: Any,
        entry: GroupEntry,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        frame: Any,
    ) -> None:
        self._capture = capture
        self._row = row
        self._entry = entry
        if entry.keys.get("ranks") is None or not entry.backends:
            capture.groups.refresh(group, entry)
        signature = arguments.read(row, args, kwargs)
        device = signature.device
        if device is None and row.op in ("barrier", "monitored_barrier"):
            device = entry.barrier_device()
        backend = entry.backend(device)
        self._asynchronous = _asynchronous(capture, signature, frame)
        self._counter = _counter(row, entry, signature, backend)
        self._keys: dict[str, Any] = {
            "kind": row.kind,
            "group": entry.n,
            "backend": backend,
            "device": device if device != "*" else None,
            "async": self._asynchronous,
            "shapes": signature.shapes,
            "dtypes": signature.dtypes,
            "bytes": signature.bytes,
            "splits": signature.splits,
            "reduce_op": signature.reduce_op if _reduces(row.op) else None,
            "root": signature.root,
            "peer": signature.peer,
            "tag": signature.tag,
            "origin": "python",
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
        call = self._capture.recorder.call(
            self._row.op,
            synchronous=self._asynchronous is False,
            counter=self._counter,
            stack=stack,
            **keys,
        )
        call.device_ends = keys["backend"] in ON_DEVICE
        return call


def _counter(
    row: Row, entry: GroupEntry, signature: arguments.Signature, backend: str | None
) -> Counter | None:
    if row.kind != MESSAGE:
        return entry.collective_counter(backend)
    if signature.peer is None:
        return None  # any source: numbered when the source is known
    return entry.stream_counter(row.op, signature.peer, signature.tag, backend)


def _asynchronous(capture: Capture, signature: arguments.Signature, frame: Any) -> bool | None:
    """Whether the public call left the waiting to its caller; None where that cannot be known."""
    if not capture.sites.is_torch(frame):
        return frame.f_code.co_name not in ("monitored_barrier",)  # the method itself was called
    if frame.f_code.co_name in _WAITING:
        return False
    if signature.asynchronous is not None:
        return signature.asynchronous
    return _async_local(frame)


def _async_local(frame: Any) -> bool | None:
    """The ``async_op`` argument of the calling torch function, where options do not carry it."""
    value = frame.f_locals.get("async_op")
    return value if isinstance(value, bool) else None


def _options_tell() -> bool:
    from torch._C._distributed_c10d import AllreduceOptions

    return hasattr(AllreduceOptions, "asyncOp")


def _reduces(op: str) -> bool:
    return "reduce" in op
