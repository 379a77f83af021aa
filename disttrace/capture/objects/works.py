"""From a Work to its operations, and what sees it complete when no wait in Python does.

What Python issued is known by a weak reference: a Work keeps tensors alive, and it is not ours. The
Work of an operation that C++ issued has no other owner that can be asked, so it is held until it is
seen to be complete, and no longer.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from disttrace import foreign
from disttrace.recording.background import SOON_NS
from disttrace.recording.core import take_out
from disttrace.recording.operation import CallRecord, Operation
from disttrace.recording.recorder import Recorder

_clock = time.perf_counter_ns

# One turn of the poller asks this many works: a program may leave thousands behind.
_TURN = 256


class Unwatched:
    """No thread watches the device: when an operation is over is not known."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._unknown = partial(recorder.lost, asked=True)

    def add(self, operation: Operation, call: tuple[int, int] | None, work: Any) -> None:
        """``operation`` was issued, by ``call`` (begin and end, absolute) too if not by its own;
        with its Work where the call returned one."""
        self._unknown(operation)

    def waited(self, operation: Operation, work: Any) -> None:
        """A wait for it returned, which orders streams: the device need not be done."""
        self.add(operation, None, work)

    def enqueued(self, operation: Operation, stream: Any) -> None:
        """A library has put it on ``stream`` of a device (None: the current one)."""
        self.add(operation, None, None)

    def by_recorder(self, call: CallRecord) -> bool:
        """Whether operations of ``call`` are followed without a Work."""
        return False


class Works:
    """Asynchronous operations by their Work, for as long as it is referred to."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._core = recorder.core
        self._core.dropped = self._dropped
        self.get = self._core.followed
        self._open = self._core.open  # those not seen complete yet
        self._held: dict[int, Any] = {}  # works of C++-issued operations, until then
        self.results = self._core.results  # by the storage of a result
        self._leaked: list[Any] = []  # a parent's works, in a forked child
        self._turn = 0
        # The original methods; the instrumentation of waits sets them before it patches the class.
        self.is_completed: Callable[[Any], bool] = lambda work: bool(work.is_completed())
        self.wait: Callable[[Any], Any] = lambda work: work.wait()
        self.given_to(Unwatched(recorder))

    def given_to(self, device: Unwatched, *, blocking: bool = False) -> None:
        """``device`` takes what a device ends; ``blocking``: it is to hear of all waits."""
        self.device = device
        self._core.enqueued = None if blocking else device.add

    def add(self, work: Any, operation: Operation, more: Sequence[Operation] = ()) -> None:
        """``work`` is the handle of ``operation``, and of ``more`` where they were coalesced."""
        try:
            self._core.follow(operation, work)
        except foreign.ours(
            TypeError
        ):  # a Python subclass without weak references: it cannot be followed
            self._recorder.lost(operation)
            return
        if more:
            operation.more = more
        if operation.call.device_ends:
            self.device.add(operation, None, work)
        else:
            self._open[operation.work] = operation
            if self._core.idle:
                self._core.wake()

    def hold(self, work: Any, operation: Operation, results: Sequence[int] = ()) -> None:
        """``work`` is of C++, so it is polled; ``results``: the storages that hold its result."""
        self.add(work, operation)
        if operation.reference is None:
            return
        operation.held = True
        self._held[operation.work] = work
        operation.tensors = results
        for number in results:
            self.results[number] = operation

    def expect(self, operation: Operation, result: Any) -> None:
        """``operation`` ends with a wait for ``result``, tensors; its Work was not seen."""
        several = isinstance(result, (list, tuple))
        numbers = tuple([storage(tensor) for tensor in (result if several else (result,))])
        operation.tensors, results = numbers, self.results
        for number in numbers:
            before = results.get(number)
            results[number] = operation
            if before is not None and not before.ended and before.reference is None:
                self._recorder.lost(before)  # nobody waited for it while that memory was its own

    def keep(self, work: Any) -> None:
        """The program holds on to completion in another way (a future): see it to the end."""
        operation = self._open.get(id(work))
        if operation is not None:
            operation.held = True
            self._held[id(work)] = work

    def over(self, operation: Operation) -> Sequence[Operation]:
        """Nothing more is expected of its Work. Returns the operations that end with it."""
        if operation.reference is None:
            self._forget_results(operation)
            return ()
        self._close(operation)
        self._core.unfollow(operation)
        return [other for other in operation.more if not other.ended]

    def of_result(self, tensor: Any) -> Operation | None:
        """The C++-issued operation whose result ``tensor`` holds, if it is not over."""
        try:
            return self.results.get(tensor.untyped_storage()._cdata)  # as storage() has it
        except foreign.ours(NotImplementedError, RuntimeError):
            return None

    def polled(self, operation: Operation, how: str) -> None:
        """The program polled for completion by ``how``; the first time counts."""
        if not operation.asked:
            operation.asked = True
            self._recorder.polled(operation, how)

    def observed(self, operation: Operation, *, complete: bool) -> None:
        """Somebody who does not wait for an operation's Work saw whether it is complete."""
        if not complete:
            operation.seen = _clock()
        elif self._open.get(operation.work) is operation:
            gap = self.gap(operation)
            for each in (operation, *operation.more):
                if not each.ended:
                    self._recorder.completed(each, gap=gap)
            self._close(operation)

    def gap(self, operation: Operation) -> int:
        """Nanoseconds since it was last known to be under way."""
        return max(0, _clock() - max(operation.seen, operation.begin + operation.issued))

    def poll(self, *, everything: bool = False) -> int:
        """Look for works that are complete; nanoseconds until the next look, 0 if none remains."""
        self._core.notice_dropped()
        operations = list(self._open.values())
        if len(operations) > _TURN and not everything:
            self._turn %= len(operations)
            operations = (operations + operations)[self._turn : self._turn + _TURN]
            self._turn += _TURN
        for operation in operations:
            self._look(operation)
        return SOON_NS if self._open else 0

    def release(self) -> None:
        """Hold nothing: the interpreter finalizes, or tracing ends. What C++ issued stays in
        flight: gloo tells the future of an error before the Work."""
        self._core.notice_dropped()  # who went away before did not stay in flight
        self._clear()

    def forget(self) -> None:
        """After fork, in the child: what is in flight is the parent's."""
        # Destroying a parent's Work here could wait for threads that this process does not have.
        self._leaked = list(self._held.values())
        self._clear()

    def _clear(self) -> None:
        self._open.clear()
        self._held.clear()
        self.results.clear()

    def _look(self, operation: Operation) -> None:
        work = operation.reference() if operation.reference is not None else None
        if work is None:  # a signal handler raised while that was seen to
            self._dropped(operation)
            return
        complete = foreign.attempt(self.is_completed, work)
        if complete is None:  # a Python subclass that cannot say it
            self._open.pop(operation.work, None)
            return
        failure = self.error(work) if complete and operation.work in self._held else None
        if failure is None:
            self.observed(operation, complete=complete)
        elif self._open.get(operation.work) is operation:
            self._recorder.failed(operation, failure, on_issue=False)
            self._close(operation)

    def error(self, work: Any) -> BaseException | None:
        """What a complete Work of C++ failed with: its wait returns at once and raises it."""
        try:
            self.wait(work)
        except foreign.ours(Exception) as error:
            return error
        return None

    def _close(self, operation: Operation) -> None:
        """It is complete: it needs no polling, and its Work need not be held."""
        take_out(self._open, operation.work, operation)
        self._forget_results(operation)
        if operation.held:
            operation.held = False
            self._held.pop(operation.work, None)

    def _forget_results(self, operation: Operation) -> None:
        for number in operation.tensors or ():
            take_out(self.results, number, operation)

    def _dropped(self, operation: Operation) -> None:
        """Nobody can wait for it any more. Runs in whatever thread begins the next operation."""
        if self._open.get(operation.work) is operation:
            for each in (operation, *operation.more):
                self._recorder.lost(each, asked=operation.asked)
        self._core.unfollow(operation)


def storage(tensor: Any) -> int:
    """What a tensor shares with its views, as a number."""
    try:
        return int(tensor.untyped_storage()._cdata)
    except foreign.ours(NotImplementedError, RuntimeError):  # a sparse tensor has none
        return 0
