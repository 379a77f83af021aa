"""Instrumentation of coalesced operations: what one Work ends, and the operation around it."""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable
from typing import Any

from disttrace.capture.calls.call_table import Calls
from disttrace.capture.instrumentation.functions import enter, leave
from disttrace.capture.wrapping.context import Capture
from disttrace.journal.format import COMPOSED
from disttrace.recording.operation import Operation, ThreadState

PART = "coalesced operations"
_OP = "coalescing_manager"


def install(capture: Capture) -> None:
    """Patch the two ends of coalescing."""
    from torch._C._distributed_c10d import Backend, ProcessGroup

    batches = Batches(capture)
    for owner in (ProcessGroup, Backend):
        attribute = functools.partial(capture.engine.attribute, PART, owner)
        attribute("_start_coalescing", functools.partial(_start, capture, batches))
        attribute("_end_coalescing", functools.partial(_end, capture, batches))


class Batches:
    """Operations issued between the two ends, by thread and group."""

    def __init__(self, capture: Capture) -> None:
        self._capture = capture
        self._calls = Calls(capture.sites)
        self._around: dict[tuple[int, int], Operation] = {}
        capture.on_fork.append(self._forget)

    def start(self, thread: ThreadState, group: Any, frame: Any) -> None:
        """From here on this thread's operations on ``group`` end together."""
        entry = self._capture.groups.of(group)
        if thread.batches is None:
            thread.batches = {}
        thread.batches[entry.n] = []
        keys = {"kind": COMPOSED, "group": entry.n, "backend": entry.backend(None)}
        operation = self._capture.begin_alone(self._calls, frame, _OP, (entry.n,), keys)
        self._around[thread.number, entry.n] = operation
        enter(thread, operation)

    def end(self, thread: ThreadState, group: Any, work: Any, call: tuple[int, int]) -> None:
        """``work`` ends them all; without one they are over, or the device says when.

        ``call`` is the interval of the call that issued them together.
        """
        entry = self._capture.groups.of(group)
        around = self._around.pop((thread.number, entry.n), None)
        if around is not None:
            leave(self._capture, around, None)
        batch = (thread.batches or {}).pop(entry.n, [])
        thread.batches = thread.batches or None
        recorder, works = self._capture.recorder, self._capture.works
        if batch and batch[0].call.device_ends:
            for operation in batch:
                works.on_device(operation, call, work)
        elif batch and work is not None:
            works.add(work, batch[0], batch[1:])
        else:
            for operation in batch:
                recorder.end(operation)

    def _forget(self) -> None:
        self._calls.forget()
        self._around.clear()


def _start(capture: Capture, batches: Batches, original: Callable[..., Any]) -> Callable[..., Any]:
    threads = capture.recorder.threads

    def _start_coalescing(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        try:
            thread = threads.state
            if not thread.inside:
                batches.start(thread, self, sys._getframe(1))
        except BaseException as error:
            capture.fail(PART, error)
        return result

    return _start_coalescing


def _end(capture: Capture, batches: Batches, original: Callable[..., Any]) -> Callable[..., Any]:
    threads = capture.recorder.threads

    def _end_coalescing(self: Any, *args: Any, **kwargs: Any) -> Any:
        begin = time.perf_counter_ns()
        work = original(self, *args, **kwargs)
        try:
            thread = threads.state
            if not thread.inside:
                batches.end(thread, self, work, (begin, time.perf_counter_ns()))
        except BaseException as error:
            capture.fail(PART, error)
        return work

    return _end_coalescing
