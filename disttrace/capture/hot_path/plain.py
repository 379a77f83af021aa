"""The wrappers of the plain core: of what issues an operation, of waits and of stores' methods.

What is rare (a call not seen before, an exception, work of a device) is left to the part's own
methods.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

from disttrace import errors
from disttrace.capture.calls.call_table import Calls
from disttrace.capture.hot_path.call_key import MISFIT, ReadKey
from disttrace.capture.wrapping.wrappers import Args, Function, Kwargs, Part, wrap
from disttrace.recording.operation import Operation, ThreadState

Describe = Callable[..., bytes]


def issuing(
    part: Part,
    original: Function,
    owner: type,
    name: str,
    *,
    read_key: ReadKey,
    asynchronous: Callable[[Any], bool | None] | None,
) -> Function:
    """The wrapper of a method that issues a collective or a message."""
    capture = part.capture
    core, entry_of, place = capture.recorder.core, capture.groups.get, capture.sites.place
    core_begin, calls = core.begin, Calls(capture.sites)

    def begin(thread: ThreadState, group: Any, args: Args, kwargs: Kwargs, frame: Any) -> Operation:
        key, call = None, None
        try:
            entry = entry_of(id(group))
            if entry is not None:
                read = read_key(args, kwargs)
                told = None if asynchronous is None else asynchronous(frame)
                key = entry.n, read, place(frame), told
                call = calls.get(key)
        except Exception as error:  # another form, or a property of the user's raised
            if not isinstance(error, MISFIT) and not errors.is_ours(error):
                raise
        if call is not None:
            return core_begin(thread, call)
        operation = part.begin(thread, frame, group, *args, **kwargs)
        if key is not None:
            calls.add(key, operation.call)
        return operation

    def returned(
        thread: ThreadState, operation: Operation, group: Any, args: Any, result: Any
    ) -> None:
        call = operation.call
        if result is not None and call.synchronous:
            if call.device_ends:
                core.issued(operation)  # its wait orders streams, and the device goes on
            else:
                operation.issued = core.clock() - operation.begin
            core.will_wait(thread, operation, result)
        elif result is None or call.device_ends or thread.batches is not None:
            part.returned(thread, operation, result)
        else:
            core.issued(operation)
            capture.works.add(result, operation)

    return wrap(part, original, begin, returned, owner=owner, name=name)


def storing(
    part: Part, original: Function, owner: type, name: str, *, describe: Describe, returns: bool
) -> Function:
    """The wrapper of a method of stores, whose operation is over when its call returns."""
    capture = part.capture
    core, entry_of, place = capture.recorder.core, capture.stores.get, capture.sites.place
    core_begin, calls = core.begin, Calls(capture.sites)

    def begin(thread: ThreadState, store: Any, args: Args, kwargs: Kwargs, frame: Any) -> Operation:
        entry = entry_of(id(store))
        key = None if entry is None else (entry.n, place(frame))
        call = calls.get(key)
        if call is not None:
            return core_begin(thread, call, describe(*args, **kwargs))
        operation = part.begin(thread, frame, store, *args, **kwargs)
        if key is not None:
            calls.add(key, operation.call)
        return operation

    def returned(
        thread: ThreadState, operation: Operation, store: Any, args: Any, result: Any
    ) -> None:
        if returns:
            part.returned(thread, operation, result)
        else:
            core.end(operation)

    return wrap(part, original, begin, returned, owner=owner, name=name)


def waiting(part: Part, original: Function, owner: type, name: str) -> Function:
    """The wrapper of a Work's ``wait``: of a call that waits itself, or later, or of one that
    nobody knows."""
    core, works = part.capture.recorder.core, part.capture.works

    def begin(
        thread: ThreadState, work: Any, args: Args, kwargs: Kwargs, frame: Any
    ) -> Operation | None:
        operation = core.waits_for(thread, work) if thread.waited else None
        if operation is None:
            operation = core.followed(work)
            if operation is not None:
                core.wait_begins(operation)
        return operation

    def returned(
        thread: ThreadState, operation: Operation, work: Any, args: Any, result: Any
    ) -> None:
        call = operation.call
        if call.counter is None or call.device_ends or operation.more or operation.held:
            part.returned(thread, operation, work)
        elif call.synchronous:
            core.end_synchronous(operation)
        else:
            works.over(operation)
            core.end(operation)

    # A wait lasts, and so is what signals interrupt. One in C++ issues nothing itself.
    alone = None if isinstance(original, types.FunctionType) else owner
    return wrap(part, original, begin, returned, owner=owner, name=name, alone=alone)
