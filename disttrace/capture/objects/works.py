"""From a Work to its operations, and who sees it complete when nobody waits for it in Python.

What Python issued is known by a weak reference: a Work keeps tensors alive, and it is not ours. The
Work of an operation that C++ issued has no other owner that can be asked, so it is held until it is
seen to be complete, and no longer.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from disttrace.recording.operation import Operation
from disttrace.recording.recorder import Recorder

_clock = time.perf_counter_ns

# One turn of the poller asks this many works: a program may leave thousands behind.
_TURN = 256


# Gets the operation, the interval of the call that issued it where that is not its own, and its
# Work where the call returned one.
OnDevice = Callable[[Operation, "tuple[int, int] | None", Any], None]


class _Reference(weakref.ref[Any]):
    """A weak reference that knows the operations its Work ends."""

    __slots__ = ("asked", "more", "operation", "seen", "tensors")

    operation: Operation
    more: Sequence[Operation]  # the others of a coalesced group
    asked: bool  # the program asked for completion in another form than a wait
    seen: int  # when it was last seen incomplete
    tensors: Sequence[int]  # storages that hold the result, where C++ issued it


class Works:
    """Asynchronous operations by their Work, for as long as somebody holds it."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._references: dict[int, _Reference] = {}
        self._open: dict[int, _Reference] = {}  # those not seen complete yet
        self._held: dict[int, Any] = {}  # works of C++-issued operations, until then
        self._results: dict[int, _Reference] = {}  # by the storage of a result
        self._leaked: list[Any] = []  # a parent's works, in a forked child
        self._turn = 0
        self.get: Callable[[int], _Reference | None] = self._references.get
        self.wake: Callable[[], None] = lambda: None
        # The original methods; the door of waits sets them before it patches the class.
        self.is_completed: Callable[[Any], bool] = lambda work: bool(work.is_completed())
        self.wait: Callable[[Any], Any] | None = None
        # Operations that a device ends; the door that watches the device takes them.
        self.on_device: OnDevice = self.ends_here
        # The same after a wait for it returned, which need not mean that the device is done.
        self.waited_on_device: Callable[[Operation, Any], None] = self.waited_here

    def add(self, work: Any, operation: Operation, more: Sequence[Operation] = ()) -> None:
        """``work`` is the handle of ``operation``, and of ``more`` where they were coalesced."""
        key = operation.work = id(work)
        try:
            reference = _Reference(work, self._dropped)
        except TypeError:  # a Python subclass without weak references: it cannot be followed
            self._recorder.lost(operation)
            return
        reference.operation = operation
        reference.more = more
        reference.asked = False
        reference.seen = 0
        reference.tensors = ()
        self._references[key] = reference
        if operation.call.device_ends:
            self.on_device(operation, None, work)
        else:
            self._open[key] = reference
            self.wake()

    def hold(self, work: Any, operation: Operation, results: Sequence[int] = ()) -> None:
        """``work`` is that of an operation that C++ issued; nobody else can be asked.

        ``results`` are the storages that hold its result.
        """
        self.add(work, operation)
        key = operation.work
        self._held[key] = work
        reference = self._references[key]
        reference.tensors = results
        for number in reference.tensors:
            self._results[number] = reference

    def keep(self, work: Any) -> None:
        """The program holds on to completion in another way (a future): see it to the end."""
        if id(work) in self._open:
            self._held[id(work)] = work

    def over(self, operation: Operation) -> Sequence[Operation]:
        """The operation's end is on record: nothing more is expected of its Work.

        Returns the operations that end with it.
        """
        reference = self._references.get(operation.work)
        if reference is None or reference.operation is not operation:
            return ()
        del self._references[operation.work]
        self._close(operation.work, reference)
        return [other for other in reference.more if other.n in self._recorder.in_flight]

    def of_result(self, tensor: Any) -> Operation | None:
        """The C++-issued operation whose result ``tensor`` holds, if it is not over."""
        reference = self._results.get(storage(tensor))
        return reference.operation if reference is not None else None

    def asked(self, reference: _Reference, how: str) -> None:
        """The program asked for completion by ``how``; the first time counts."""
        if not reference.asked:
            reference.asked = True
            self._recorder.asked(reference.operation, how)

    def observed(self, reference: _Reference, *, complete: bool) -> None:
        """Somebody who does not wait for ``reference``'s Work saw whether it is complete."""
        now = _clock()
        operation = reference.operation
        if not complete:
            reference.seen = now
        elif self._open.get(operation.work) is reference:
            gap = max(0, now - max(reference.seen, operation.begin + operation.issued))
            for each in (operation, *reference.more):
                if each.n in self._recorder.in_flight:
                    self._recorder.completed(each, gap=gap)
            self._close(operation.work, reference)

    def poll(self, *, everything: bool = False) -> bool:
        """Look for works that are complete; whether others remain."""
        references = list(self._open.values())
        if len(references) > _TURN and not everything:
            self._turn %= len(references)
            references = (references + references)[self._turn : self._turn + _TURN]
            self._turn += _TURN
        for reference in references:
            self._look(reference)
        return bool(self._open)

    def ends_here(self, operation: Operation, call: tuple[int, int] | None, work: Any) -> None:
        """Nobody watches the device: when the operation is over is not known."""
        if operation.n in self._recorder.in_flight:
            self._recorder.lost(operation, asked=True)

    def waited_here(self, operation: Operation, work: Any) -> None:
        """The same after a wait, which orders streams and tells nothing of the device."""
        self.ends_here(operation, None, work)

    def release(self) -> None:
        """Hold nothing any more: the interpreter is about to finalize, or tracing ends."""
        self._held.clear()
        self._open.clear()
        self._results.clear()

    def forget(self) -> None:
        """After fork, in the child: what is in flight is the parent's."""
        self._references.clear()
        # Destroying a parent's Work here could wait for threads that this process does not have.
        self._leaked = list(self._held.values())
        self.release()

    def _look(self, reference: _Reference) -> None:
        work = reference()
        if work is None:
            return
        operation = reference.operation
        try:
            complete = self.is_completed(work)
        except Exception:  # a Python subclass that cannot say it
            self._open.pop(operation.work, None)
            return
        error = self._error(work) if complete and operation.work in self._held else None
        if error is None:
            self.observed(reference, complete=complete)
        elif self._open.get(operation.work) is reference:
            self._recorder.failed(operation, error, on_issue=False)
            self._close(operation.work, reference)

    def _error(self, work: Any) -> BaseException | None:
        """What a complete Work of C++ failed with: its wait returns at once and raises it."""
        if self.wait is None:
            return None
        try:
            self.wait(work)
        except Exception as error:
            return error
        return None

    def _close(self, key: int, reference: _Reference) -> None:
        """It is complete: it needs no polling, and nobody needs to hold it."""
        self._open.pop(key, None)
        for number in reference.tensors:
            if self._results.get(number) is reference:
                del self._results[number]
        self._held.pop(key, None)

    def _dropped(self, reference: weakref.ref[Any]) -> None:
        """Nobody can wait for it any more. Runs in whatever thread drops the last reference."""
        assert isinstance(reference, _Reference)
        key = reference.operation.work
        if self._references.get(key) is reference:
            del self._references[key]
            if self._open.pop(key, None) is not None:
                for operation in (reference.operation, *reference.more):
                    if operation.n in self._recorder.in_flight:
                        self._recorder.lost(operation, asked=reference.asked)


def storage(tensor: Any) -> int:
    """What a tensor shares with its views, as a number."""
    try:
        return int(tensor.untyped_storage()._cdata)
    except (NotImplementedError, RuntimeError):  # a sparse tensor has none
        return 0
