"""Operations whose issuer in C++ waits for them itself: their end is that of its call.

DDP's reducer waits for what it issued before the backward pass is over, and a function of C++
before it returns. So nobody needs to look for completion meanwhile; what has not come to that end
(the pass failed, or is stuck) is looked at when the live thread comes by, a few times a second.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch._C._distributed_c10d import Work

from disttrace.capture.objects.works import Works
from disttrace.capture.wrapping.context import Capture
from disttrace.foreign import ours
from disttrace.journal.originals import get_ident
from disttrace.recording.operation import Operation

_get_future = Work.get_future  # imported before it is patched
_OUTSIDE = -1  # no backward pass
_MOST_PASSES = 16  # known at once, before those are looked for that failed


class Awaited:
    """What waits, by the call or the backward pass that it belongs to."""

    def __init__(self, capture: Capture, part: str, over: Callable[[], object]) -> None:
        self._capture = capture
        self._part = part
        self._over = over  # of a backward pass
        self._works: Works = capture.works
        self._recorder = capture.recorder
        self._open: dict[int, tuple[Operation, Any]] = {}  # with its Work, by its number
        self._passes: dict[int, list[int]] = {}  # numbers of operations, by autograd's of the pass
        self._calls: dict[int, list[int]] = {}  # the same, by the thread that is in such a call
        self._leaked: list[Any] = []  # a parent's, in a forked child
        self._pass = torch._C._current_graph_task_id
        self._looked_after = False
        capture.on_fork.append(self._forget)
        capture.engine.on_undo(part, "works of what C++ awaits", self._release)
        capture.poll(part, self._poll, self._release)

    def add(self, operation: Operation, work: Any) -> None:
        """``operation`` was issued, in a backward pass or between ``enter`` and ``leave``."""
        number = self._pass()
        issued = self._calls.get(get_ident())
        if issued is None and number != _OUTSIDE:
            issued = self._passes.get(number)
            if issued is None:
                issued = self._begin_pass(number)
        if issued is None:
            self._works.hold(work, operation)
            return
        self._open[operation.n] = operation, work
        issued.append(operation.n)
        if not self._looked_after:
            self._looked_after = True
            self._capture.wake()  # whoever looks may not have begun to

    def enter(self) -> list[int] | None:
        """The calling thread is about to call what waits for all that it issues; for ``leave``."""
        thread = get_ident()
        outer = self._calls.get(thread)
        self._calls[thread] = []
        return outer

    def leave(self, outer: list[int] | None) -> None:
        thread = get_ident()
        issued = self._calls.pop(thread, [])
        if outer is not None:
            self._calls[thread] = outer
        for operation, work in self._taken(issued):
            if self._works.is_completed(work) or _future_is_done(work):
                self._settle(operation, work, self._recorder.end)
            else:
                self._works.hold(work, operation)

    def _begin_pass(self, number: int) -> list[int]:
        if len(self._passes) >= _MOST_PASSES:
            known = list(self._passes.items())
            self._passes = {p: ns for p, ns in known if any(n in self._open for n in ns)}
        self._passes[number] = issued = list[int]()
        # The reducer waits in a callback that it queues after its last operation. What is queued
        # now would come before that, so it queues what comes after. No code of Python's runs there.
        queue = torch.autograd.Variable._execution_engine.queue_callback
        queue(functools.partial(queue, functools.partial(self._ended, number)))
        return issued

    def _ended(self, number: int) -> None:
        self._capture.guard(self._part, self._pass_is_over, number)

    def _pass_is_over(self, number: int) -> None:
        complete, end = self._works.is_completed, self._recorder.end
        for operation, work in self._taken(self._passes.pop(number, ())):
            if complete(work) or _future_is_done(work):
                end(operation)  # what failed would have ended the pass before
            else:
                self._works.hold(work, operation)  # not awaited after all
        self._over()

    def _taken(self, numbers: Iterable[int]) -> Iterable[tuple[Operation, Any]]:
        """Those that were not looked at before."""
        found = [self._open.pop(n, None) for n in numbers]
        return [each for each in found if each is not None]

    def _settle(
        self, operation: Operation, work: Any, ended: Callable[[Operation], object]
    ) -> None:
        """It is complete: it ``ended``, unless it failed."""
        error = self._works.error(work)
        if error is None:
            ended(operation)
        else:
            self._recorder.failed(operation, error, on_issue=False)

    def _poll(self) -> int:
        """See which are complete though their pass is not over; no hurry for that."""
        for n, (operation, work) in list(self._open.items()):
            if not self._works.is_completed(work):
                operation.seen = self._recorder.clock()
            elif self._open.pop(n, None) is not None:
                gap = self._works.gap(operation)  # its pass is not over
                self._settle(operation, work, functools.partial(self._recorder.completed, gap=gap))
        return 0

    def _release(self) -> None:
        """At exit, or where tracing ends: what is complete by now is on record as complete."""
        self._capture.guard(self._part, self._poll)
        self._open.clear()
        self._passes.clear()

    def _forget(self) -> None:
        self._leaked = list(self._open.values())  # see Works.forget
        self._open.clear()
        self._passes.clear()
        self._calls.clear()
        self._looked_after = False


def _future_is_done(work: Any) -> bool:
    """Gloo completes the future a moment before the Work."""
    try:
        return bool(_get_future(work).done())
    except ours(RuntimeError):  # the backend has none
        return False
