"""Instrumentation of coalesced operations: what one Work ends, and the operation around it."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

from torch._C._distributed_c10d import Backend, ProcessGroup

from disttrace.capture.wrapping.context import Capture
from disttrace.capture.wrapping.wrappers import after
from disttrace.recording.operation import Operation

PART = "coalesced operations"
_OP = "coalescing_manager"


def install(capture: Capture) -> None:
    """Patch the two ends of coalescing."""
    batches = Coalescing(capture)
    for owner in (ProcessGroup, Backend):
        start = after(capture, PART, batches.start)
        capture.engine.attribute(PART, owner, "_start_coalescing", start)
        capture.engine.attribute(PART, owner, "_end_coalescing", batches.end)


class Coalescing:
    """Operations issued between the two ends, by thread and group."""

    def __init__(self, capture: Capture) -> None:
        self._capture = capture
        self._around: dict[tuple[int, int], Operation] = {}
        capture.on_fork.append(self._around.clear)

    def start(self, result: Any, group: Any, *args: Any, **kwargs: Any) -> None:
        """From here on this thread's operations on ``group`` end together."""
        thread = self._capture.recorder.threads.state
        if thread.inside:
            return
        entry = self._capture.groups.of(group)
        if thread.batches is None:
            thread.batches = {}
        thread.batches[entry.n] = []
        operation = self._capture.begin_composed(sys._getframe(1).f_back, _OP, group=entry)
        self._around[thread.number, entry.n] = operation

    def end(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """The wrapper of the call that issues them together."""
        guard, ended = self._capture.guard, self._ended

        def _end_coalescing(self: Any, *args: Any, **kwargs: Any) -> Any:
            begin = time.perf_counter_ns()
            work = original(self, *args, **kwargs)
            guard(PART, ended, self, work, (begin, time.perf_counter_ns()))
            return work

        return _end_coalescing

    def _ended(self, group: Any, work: Any, call: tuple[int, int]) -> None:
        """``work`` ends them all; without one they are over, or the device says when.

        ``call`` is the interval of the call that issued them together.
        """
        thread = self._capture.recorder.threads.state
        if thread.inside:
            return
        entry = self._capture.groups.of(group)
        self._capture.leave(PART, self._around.pop((thread.number, entry.n), None))
        batch = (thread.batches or {}).pop(entry.n, [])
        thread.batches = thread.batches or None
        recorder, works = self._capture.recorder, self._capture.works
        if batch and batch[0].call.device_ends:
            for operation in batch:
                works.device.add(operation, call, work)
        elif batch and work is not None:
            works.add(work, batch[0], batch[1:])
        else:
            for operation in batch:
                recorder.end(operation)
