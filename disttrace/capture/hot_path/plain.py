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
from disttrace.recording.operation import WAITED, Operation, ThreadState, size


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
    core, number_of, place = capture.recorder.core, capture.groups.numbers.get, capture.sites.place
    core_begin, calls = core.begin, Calls(capture.sites)
    known = calls.get

    def begin(thread: ThreadState, group: Any, args: Args, kwargs: Kwargs, frame: Any) -> Operation:
        key, call = None, None
        try:
            number = number_of(id(group))
            if number is not None:
                told = None if asynchronous is None else asynchronous(frame)
                key = number, told, read_key(args, kwargs), place(frame)
                call = known(key)
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
            operation.work = id(result)
            thread.waited.append(operation)
            if len(thread.waited) > WAITED:  # a wait that never came: an exception came between
                del thread.waited[0]
        elif result is None or call.device_ends or thread.batches is not None:
            part.returned(thread, operation, result)
        else:
            core.issued(operation)
            capture.works.add(result, operation)

    return wrap(part, original, begin, returned, owner=owner, name=name)


def storing(
    part: Part,
    original: Function,
    owner: type,
    name: str,
    *,
    told: Callable[[Args, Kwargs], bytes],
    returns: bool,
) -> Function:
    """The wrapper of a method of stores, whose operation is over when its call returns; ``told``
    is what its begin record has of its arguments."""
    capture = part.capture
    core, number_of, place = capture.recorder.core, capture.stores.numbers.get, capture.sites.place
    core_begin, core_end, calls = core.begin, core.end, Calls(capture.sites)
    known = calls.get

    def begin(thread: ThreadState, store: Any, args: Args, kwargs: Kwargs, frame: Any) -> Operation:
        number = number_of(id(store))
        if number is None:
            return part.begin(thread, frame, store, *args, **kwargs)
        key = number, place(frame)
        call = known(key)
        if call is not None:
            return core_begin(thread, call, told(args, kwargs))
        operation = part.begin(thread, frame, store, *args, **kwargs)
        calls.add(key, operation.call)
        return operation

    def returned(
        thread: ThreadState, operation: Operation, store: Any, args: Any, result: Any
    ) -> None:
        core_end(operation, b',"n":%d' % size(result) if returns else b"")

    return wrap(part, original, begin, returned, owner=owner, name=name)


def waiting(part: Part, original: Function, owner: type, name: str) -> Function:
    """The wrapper of a Work's ``wait``: of a call that waits itself, or later, or of one that
    nobody knows."""
    core, works = part.capture.recorder.core, part.capture.works
    end, end_synchronous = core.end, core.end_synchronous

    def begin(
        thread: ThreadState, work: Any, args: Args, kwargs: Kwargs, frame: Any
    ) -> Operation | None:
        awaited, waited = id(work), thread.waited
        for operation in reversed(waited):
            if operation.work == awaited:
                waited.remove(operation)
                return operation
        followed = core.followed(work)
        if followed is not None:
            core.wait_begins(followed)
        return followed

    def returned(
        thread: ThreadState, operation: Operation, work: Any, args: Any, result: Any
    ) -> None:
        call = operation.call
        if call.counter is None or call.device_ends or operation.more or operation.held:
            part.returned(thread, operation, work)
        elif call.synchronous:
            end_synchronous(operation)
        else:
            works.over(operation)
            end(operation)

    # A wait lasts, and so is what signals interrupt. One in C++ issues nothing itself.
    alone = None if isinstance(original, types.FunctionType) else owner
    return wrap(part, original, begin, returned, owner=owner, name=name, alone=alone)
