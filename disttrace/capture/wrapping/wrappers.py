"""The shapes of a wrapper: around an operation, and around one made of several, or any call.

Each calls torch's original from its own frame, outside of our guard, with the object as its first
argument: see ``_overriding``.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

from disttrace import errors, foreign
from disttrace.capture.wrapping.context import Capture
from disttrace.recording.operation import Operation, ThreadState

_frame = sys._getframe

Function = Callable[..., Any]
Args = tuple[Any, ...]  # positional arguments after the object
Kwargs = dict[str, Any]
# (object, positional arguments, keywords, the calling frame: None where C++ calls, or a new thread)
Enter = Callable[[Any, Args, Kwargs, Any], "Operation | None"]
# The same, after the thread that calls.
Begin = Callable[[ThreadState, Any, Args, Kwargs, Any], "Operation | None"]
# (thread, operation, object, positional arguments, result)
Returned = Callable[[ThreadState, Operation, Any, Args, Any], None]


class Part:
    """What the wrapper of a method leaves to ordinary functions, in either core."""

    def __init__(self, capture: Capture, name: str, *, on_issue: bool = True) -> None:
        """``on_issue``: what the call raises, it raises before anything is under way."""
        self.capture = capture
        self.name = name
        self._on_issue = on_issue

    def begin(
        self, thread: ThreadState, frame: Any, owner: Any, /, *args: Any, **kwargs: Any
    ) -> Operation:
        """Begin a call that was not seen before, or that has not the usual form."""
        raise NotImplementedError

    def returned(self, thread: ThreadState, operation: Operation, result: Any) -> None:
        """The call returned, with what the wrapper does not end itself."""
        raise NotImplementedError

    def failed(self, thread: ThreadState, operation: Operation, error: BaseException) -> None:
        """The user's call raised ``error``, which the wrapper raises again."""
        self.capture.raised(error)
        self.capture.recorder.failed(operation, error, on_issue=self._on_issue)

    def fail(self, error: BaseException, operation: Operation | None = None) -> None:
        """Something of ours raised ``error``; what is not ours is raised again. Ends a lost
        ``operation``."""
        if operation is not None and not operation.work:
            self.capture.recorder.lost(operation, asked=True)
        self.capture.fail(self.name, error)

    def failing(self, thread: ThreadState, operation: Operation, error: BaseException) -> None:
        """What the plain core does where the user's call raised."""
        try:
            self.failed(thread, operation, error)
        except BaseException as ours:
            self.fail(ours, operation)


NO_OBJECT = object()
"""In the place of the first argument of a call that has none: the original refuses it."""


def wrap(
    part: Part,
    original: Function,
    begin: Begin,
    returned: Returned,
    *,
    owner: type = object,
    name: str = "",
    nested: bool = False,
    alone: type | None = None,
    above: int = 0,
) -> Function:
    """The wrapper of an operation, or of ``owner.name``: ``begin`` puts the begin on record, None:
    there is none.

    A call that comes back through a wrapper on the same thread (a Python subclass, torch's own
    wrappers) is the same operation and passes, unless it is recorded ``nested``. From an object of
    the very class ``alone`` nothing comes back: a call that is made meanwhile is that of a signal
    handler, which runs before the wrapper does anything else, and is an operation of its own.
    ``above``: frames of ours between the wrapper and the call.
    """
    core, direct = part.capture.recorder.core, {id(owner): owner}
    threads, overrides = core.threads, _overriding(owner, name, direct)
    elsewhere = functools.partial(_elsewhere, original)

    def wrapper(self: Any = NO_OBJECT, /, *args: Any, **kwargs: Any) -> Any:
        try:
            if self is NO_OBJECT:
                return original(**kwargs)
            thread = threads.state
            inside = thread.inside
            try:
                frame = _frame(1 + above)
            except foreign.ours(ValueError):
                frame = None
            call = original if id(type(self)) in direct or not overrides(self, frame) else elsewhere
            if (inside and not nested) or core.off:
                return call(self, *args, **kwargs)
            operation: Operation | None = None
            ours: BaseException | None = None
            try:
                operation = begin(thread, self, args, kwargs, frame)
            except RecursionError as error:  # what is left of the stack is for the call
                ours = error
            except foreign.ours(BaseException) as error:
                ours = error
            if operation is None:
                result = call(self, *args, **kwargs)
                if ours is not None:  # what torch refuses, too, is no failure of ours
                    try:
                        part.fail(ours)
                    except errors.SCARCE:
                        pass  # too little is left to say it
                return result
            try:
                thread.inside = inside or type(self) is not alone
                result = call(self, *args, **kwargs) if kwargs else call(self, *args)
            except BaseException as error:
                thread.inside = inside
                try:
                    part.failing(thread, operation, error)
                except errors.SCARCE:
                    pass
                raise
            thread.inside = inside
            try:
                returned(thread, operation, self, args, result)
            except BaseException as error:
                try:
                    part.fail(error, operation)
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

    return wrapper


def compose(
    capture: Capture,
    part: str,
    original: Function,
    enter: Enter | None = None,
    left: Callable[..., object] | None = None,
) -> Function:
    """The wrapper of what issues several operations: those are children of the one that ``enter``
    begins; ``left(operation, result, *arguments)`` is called once it is over."""

    def wrapper(self: Any = NO_OBJECT, /, *args: Any, **kwargs: Any) -> Any:
        operation = None
        try:
            if self is NO_OBJECT:
                return original(**kwargs)
            try:
                if enter is not None:
                    operation = capture.guard(part, enter, self, args, kwargs, _frame(1))
            except RecursionError:
                pass  # what is left of the stack is for the call
            try:
                result = original(self, *args, **kwargs)
            except BaseException as error:
                try:
                    capture.leave(part, operation, error)
                except RecursionError:
                    pass
                raise
            try:
                if operation is not None:
                    capture.leave(part, operation)
                if left is not None:
                    capture.guard(part, left, operation, result, self, *args, **kwargs)
            except RecursionError:
                pass
            return result
        except BaseException as error:
            try:
                errors.take_off(error)
            except errors.SCARCE:
                pass
            raise

    return wrapper


def before(capture: Capture, part: str, look: Callable[..., object]) -> Callable[..., Any]:
    """Makes wrappers that call ``look`` with the same arguments first."""

    def enter(owner: Any, args: Args, kwargs: Kwargs, _: Any) -> None:
        look(owner, *args, **kwargs)

    return lambda original: compose(capture, part, original, enter)


def after(capture: Capture, part: str, look: Callable[..., object]) -> Callable[..., Any]:
    """Makes wrappers that call ``look`` with the result and the arguments afterwards."""

    def left(_: None, result: Any, owner: Any, /, *args: Any, **kwargs: Any) -> None:
        look(result, owner, *args, **kwargs)

    return lambda original: compose(capture, part, original, left=left)


def passed_on(original: Function) -> Function:
    """The method of an object of ours that has the ``real`` one do it."""

    def method(self: Any, *args: Any) -> Any:
        return original(self.real, *args)

    return method


def _overriding(owner: type, name: str, direct: dict[int, type]) -> Callable[[Any, Any], bool]:
    """Whether a method of a base class is called with an object whose own class overrides it; the
    classes that do not are put into ``direct``.

    pybind11 calls the override then, unless the calling frame has the method's name and the object
    as its first argument: it takes that for the override's own call of ``super()``. The wrapper's
    frame has both, which stops the recursion that a wrapper would cause else; so a call that is no
    such call of ``super()`` is made from another frame.
    """

    def overrides(thing: Any, frame: Any) -> bool:
        kind = type(thing)  # whose metaclass is not asked, for a hash or an attribute
        if foreign.of_class(kind, name) is foreign.of_class(owner, name):
            direct[id(kind)] = kind
            return False
        if frame is None or frame.f_code.co_name != name or not frame.f_code.co_argcount:
            return True
        return frame.f_locals.get(frame.f_code.co_varnames[0]) is not thing

    return overrides


def _elsewhere(original: Function, thing: Any, /, *args: Any, **kwargs: Any) -> Any:
    """The original, from a frame of another name."""
    return original(thing, *args, **kwargs)
