"""The wrappers of the plain core: of what issues an operation, of waits and of stores' methods.

Each is one function, for a call of a Python function costs about as much as a record. What is rare
(a call not seen before, an exception, work of a device) is left to the part's own methods.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Protocol

from disttrace import errors
from disttrace.capture.calls.call_table import Calls
from disttrace.capture.hot_path.call_key import MISFIT, ReadKey
from disttrace.capture.wrapping.context import Capture
from disttrace.recording.operation import Operation, ThreadState

Function = Callable[..., Any]


class Ending(Protocol):
    """What the wrapper of a wait leaves to ordinary functions, in either core."""

    def returned(self, thread: ThreadState, operation: Operation, result: Any) -> None:
        """The call returned, with what the wrapper does not end itself."""

    def failed(self, thread: ThreadState, operation: Operation, error: BaseException) -> None:
        """The user's call raised ``error``, which the wrapper raises again."""

    def fail(self, error: BaseException) -> None:
        """Something of ours raised ``error``. Raises it again where it is not ours after all."""


class Part(Ending, Protocol):
    """What the wrapper of a method that begins something leaves to them besides."""

    def begin(
        self,
        thread: ThreadState,
        owner: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        frame: Any,
    ) -> Operation:
        """Begin a call that was not seen before, or that has not the usual form."""


def issuing(
    original: Function,
    part: Part,
    capture: Capture,
    calls: Calls,
    read_key: ReadKey,
    asynchronous: Callable[[Any], bool | None] | None,
    owner: type,
    name: str,
) -> Function:
    """The wrapper of a method that issues a collective or a message."""
    core, entry_of, place = capture.recorder.core, capture.groups.get, capture.sites.place
    threads = core.threads
    begin, get, elsewhere = core.begin, calls.get, Elsewhere(original, owner, name)

    def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
        thread = threads.state
        if thread.inside or core.off:
            return original(self, *args, **kwargs)
        frame, operation, ours = sys._getframe(1), None, None
        try:
            key, call = None, None
            try:
                entry = entry_of(id(self))
                if entry is not None:
                    read = read_key(args, kwargs)
                    told = None if asynchronous is None else asynchronous(frame)
                    key = entry.n, read, place(frame), told
                    call = get(key)
            except Exception as error:  # another form, or a property of the user's raised
                if not isinstance(error, MISFIT) and not errors.is_ours(error):
                    raise
            if call is not None:
                operation = begin(thread, call)
            else:
                operation = part.begin(thread, self, args, kwargs, frame)
                if key is not None:
                    calls.add(key, operation.call)
        except BaseException as error:
            if not errors.is_ours(error):
                raise
            ours = error
        if operation is None:
            result = original(self, *args, **kwargs)
            if ours is not None:  # what torch refuses, too, is no failure of ours
                part.fail(ours)
            return result
        try:
            thread.inside = True
            if type(self) is owner or not elsewhere.needed(self, frame):
                result = original(self, *args, **kwargs)
            else:
                result = elsewhere.call(self, args, kwargs)
        except BaseException as error:
            thread.inside = False
            _failed(part, thread, operation, error)
            raise
        thread.inside = False
        try:
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
        except BaseException as error:
            part.fail(error)
        return result

    return wrapper


def storing(
    original: Function,
    part: Part,
    capture: Capture,
    calls: Calls,
    describe: Callable[[tuple[Any, ...], dict[str, Any]], bytes],
    returns: bool,
    owner: type,
    name: str,
) -> Function:
    """The wrapper of a method of stores, whose operation is over when its call returns."""
    core, entry_of, place = capture.recorder.core, capture.stores.get, capture.sites.place
    threads = core.threads
    begin, end, get, elsewhere = core.begin, core.end, calls.get, Elsewhere(original, owner, name)

    def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
        thread = threads.state
        if thread.inside or core.off:
            return original(self, *args, **kwargs)
        frame, operation, ours = sys._getframe(1), None, None
        try:
            entry = entry_of(id(self))
            key = None if entry is None else (entry.n, place(frame))
            call = get(key)
            if call is not None:
                operation = begin(thread, call, describe(args, kwargs))
            else:
                operation = part.begin(thread, self, args, kwargs, frame)
                if key is not None:
                    calls.add(key, operation.call)
        except BaseException as error:
            if not errors.is_ours(error):
                raise
            ours = error
        if operation is None:
            result = original(self, *args, **kwargs)
            if ours is not None:
                part.fail(ours)
            return result
        try:
            thread.inside = True
            if type(self) is owner or not elsewhere.needed(self, frame):
                result = original(self, *args, **kwargs)
            else:
                result = elsewhere.call(self, args, kwargs)
        except BaseException as error:
            thread.inside = False
            _failed(part, thread, operation, error)
            raise
        thread.inside = False
        try:
            if returns:
                part.returned(thread, operation, result)
            else:
                end(operation)
        except BaseException as error:
            part.fail(error)
        return result

    return wrapper


def waiting(original: Function, part: Ending, capture: Capture, owner: type, name: str) -> Function:
    """The wrapper of a Work's ``wait``: of a call that waits itself, or later, or of one that
    nobody knows."""
    core, works = capture.recorder.core, capture.works
    threads = core.threads
    elsewhere = Elsewhere(original, owner, name)

    def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
        thread = threads.state
        if thread.inside or core.off:
            return original(self, *args, **kwargs)
        operation, synchronous = None, True
        try:
            operation = core.waits_for(thread, self) if thread.waited else None
            if operation is None:
                synchronous = False
                operation = core.followed(self)
                if operation is not None:
                    core.wait_begins(operation)
        except BaseException as error:
            part.fail(error)
        if operation is None:
            return original(self, *args, **kwargs)
        try:
            thread.inside = True
            if type(self) is owner or not elsewhere.needed(self, sys._getframe(1)):
                result = original(self, *args, **kwargs)
            else:
                result = elsewhere.call(self, args, kwargs)
        except BaseException as error:
            thread.inside = False
            _failed(part, thread, operation, error)
            raise
        thread.inside = False
        try:
            call = operation.call
            if call.counter is None or call.device_ends or operation.more or operation.held:
                part.returned(thread, operation, self)
            elif synchronous:
                core.end_synchronous(operation)
            else:
                works.over(operation)
                core.end(operation)
        except BaseException as error:
            part.fail(error)
        return result

    return wrapper


class Elsewhere:
    """Where a method of a base class is called with an object whose own class overrides it.

    pybind11 calls the override then, unless the calling frame has the method's name and the object
    as its first argument: it takes that for the override's own call of ``super()``. The wrapper's
    frame has both, which stops the recursion that a wrapper would cause else; so a call that is no
    such call of ``super()`` is made from another frame.
    """

    def __init__(self, original: Function, owner: type, name: str) -> None:
        self._original = original
        self._owner = owner
        self._name = name
        self._overriding: dict[type, bool] = {}

    def needed(self, thing: Any, frame: Any) -> bool:
        """Whether to call by ``call``; ``frame`` is the caller's."""
        kind = type(thing)
        overrides = self._overriding.get(kind)
        if overrides is None:
            own = getattr(kind, self._name, None) is not getattr(self._owner, self._name, None)
            overrides = self._overriding[kind] = own
        if not overrides:
            return False
        code = frame.f_code
        if code.co_name != self._name or not code.co_argcount:
            return True
        return frame.f_locals.get(code.co_varnames[0]) is not thing

    def call(self, thing: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The original, from a frame of another name."""
        return self._original(thing, *args, **kwargs)


def _failed(part: Ending, thread: ThreadState, operation: Operation, error: BaseException) -> None:
    try:
        part.failed(thread, operation, error)
    except BaseException as ours:
        part.fail(ours)
