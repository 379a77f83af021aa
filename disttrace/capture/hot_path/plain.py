"""The wrappers of the plain core: of what issues an operation, of waits and of stores' methods.

What is rare (a call not seen before, an exception, work of a device) is left to the part's own
methods.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

from disttrace import errors
from disttrace.capture.calls.call_site import CallTable
from disttrace.capture.hot_path.call_key import ReadKey
from disttrace.capture.wrapping.wrappers import Args, Begin, Function, Kwargs, Part, wrap
from disttrace.foreign import ours
from disttrace.patching import rename
from disttrace.recording.operation import WAITED, Operation, ThreadState, size


def issuing(
    part: Part,
    original: Function,
    owner: type,
    name: str,
    *,
    read_key: ReadKey,
    asynchronous: Callable[[Any], bool | None] | None,
    tells: bool = False,
) -> Function:
    """The wrapper of what issues a collective or message; ``tells``: the part gets all results."""
    recorder, works = part.capture.recorder, part.capture.works
    core: Any = recorder.core

    def returned(thread: ThreadState, operation: Operation, _: Any, __: Any, result: Any) -> None:
        call = operation.call
        if result is not None and call.synchronous:
            if call.device_ends:
                core.issued(operation)  # its wait orders streams, and the device goes on
            else:
                # The native core reads the time itself, and wraps the program's own functions here.
                operation.issued = (core.clock or recorder.clock)() - operation.begin
            operation.work = id(result)
            thread.waited.append(operation)
            if len(thread.waited) > WAITED:  # a wait that never came: an exception came between
                del thread.waited[0]
        elif tells or result is None or call.device_ends or thread.batches is not None:
            part.returned(thread, operation, result)
        else:
            core.issued(operation)
            works.add(result, operation)

    begin = _beginning(part, part.capture.groups.numbers.get, read_key, asynchronous, None)
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
    """The wrapper of a method of stores; ``told``: what its begin has of its arguments."""
    end = part.capture.recorder.core.end

    def returned(thread: ThreadState, operation: Operation, _: Any, __: Any, result: Any) -> None:
        end(operation, b',"n":%d' % size(result) if returns else b"")

    begin = _beginning(part, part.capture.stores.numbers.get, None, None, told)
    return wrap(part, original, begin, returned, owner=owner, name=name)


def _beginning(
    part: Part,
    number_of: Callable[[int], int | None],
    read_key: ReadKey | None,
    asynchronous: Callable[[Any], bool | None] | None,
    told: Callable[[Args, Kwargs], bytes] | None,
) -> Begin:
    """Looks the call up by its object's number and place, and what else tells calls apart."""
    capture, calls = part.capture, CallTable(part.capture.sites)
    place, known, core_begin = capture.sites.place, calls.get, capture.recorder.core.begin

    def begin(thread: ThreadState, owner: Any, args: Args, kwargs: Kwargs, frame: Any) -> Operation:
        key, call = None, None
        try:
            number = number_of(id(owner))
            if number is not None:
                read = read_key and read_key(args, kwargs)
                key = number, place(frame), read, asynchronous and asynchronous(frame)
                call = known(key)
        except ours(Exception):  # another form, or a property of the user's raised
            pass
        if call is not None:
            return core_begin(thread, call, told(args, kwargs) if told else b"")
        operation = part.begin(thread, frame, owner, *args, **kwargs)
        if key is not None:
            try:
                calls.add(key, operation.call)
            except BaseException:  # nobody gets it who could end it
                part.capture.recorder.lost(operation)
                raise
        return operation

    return begin


def waiting(part: Part, original: Function, owner: type, name: str) -> Function:
    """The wrapper of a Work's ``wait``: of a call that waits itself, or later, or of one that
    nobody knows."""
    core, works = part.capture.recorder.core, part.capture.works
    threads, end, end_synchronous = core.threads, core.end, core.end_synchronous

    def begin(thread: ThreadState, work: Any, *_: Any) -> Operation | None:
        awaited, waited = id(work), thread.waited
        for operation in reversed(waited):
            if operation.work == awaited:
                waited.remove(operation)
                return operation
        followed = core.followed(work)
        if followed is not None:
            core.wait_begins(followed)
        return followed

    def returned(thread: ThreadState, operation: Operation, work: Any, *_: Any) -> None:
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
    any_wait = wrap(part, original, begin, returned, owner=owner, name=name, alone=alone, above=1)
    rename(any_wait, name, owner)

    def wait(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        try:  # around all of it: an exception of the other wait passes this frame, too
            thread = threads.state
            operation = thread.waited[-1] if thread.waited else None
            if operation is None or operation.work != id(self) or type(self) is not alone or args:
                return any_wait(self, *args, **kwargs)
            if kwargs or thread.inside or core.off:
                return any_wait(self, *args, **kwargs)
            thread.waited.remove(operation)  # the public call that issued it waits for it
            try:
                result = original(self)
            except BaseException as error:
                try:
                    part.failing(thread, operation, error)
                except errors.SCARCE:
                    pass
                raise
            try:
                if operation.call.counter is None or operation.call.device_ends:
                    part.returned(thread, operation, self)
                else:
                    end_synchronous(operation)
            except BaseException as error:
                try:
                    part.fail(error)
                except errors.SCARCE as further:
                    if further is error:  # a handler's
                        raise
            return result
        except BaseException as error:
            try:
                errors.take_off(error)
            except errors.SCARCE:
                pass
            raise

    return wait
