"""The door for waiting: ``Work.wait`` in every class that defines it."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any

from disttrace.capture.wrapping.context import Capture
from disttrace.recording.operation import Operation, ThreadState
from disttrace.recording.recorder import END_SYNCHRONOUS

PART = "waits"


def install(capture: Capture) -> None:
    """Patch ``wait`` in Work; subclasses.py does it in those that have their own."""
    from torch._C._distributed_c10d import Work

    def adopt(owner: type) -> None:
        if issubclass(owner, Work):
            capture.engine.attribute(PART, owner, "wait", functools.partial(_door, capture))

    capture.adopters.append(adopt)
    adopt(Work)


def _door(capture: Capture, original: Callable[..., Any]) -> Callable[..., Any]:
    """The other half of the hot path: the wait of a synchronous call is the first case."""
    recorder, works, fail = capture.recorder, capture.works, capture.fail
    threads, get, clock = recorder.threads, works.get, time.perf_counter_ns

    def other(work: Any, awaited: int) -> tuple[Operation | None, bool]:
        """What a wait that is not the flat path's ends, and whether its own call does the waiting.

        None if that is over or unknown.
        """
        reference = get(awaited)
        if reference is not None and reference() is work:
            recorder.wait_begins(reference.operation)
            return reference.operation, False
        return threads.state.waits_for(awaited), True

    def failed(
        thread: ThreadState, n: int, operation: Operation | None, error: BaseException
    ) -> None:
        """The wait raised ``error``, which the wrapper raises again."""
        try:
            if operation is None:
                operation = recorder.unfolded(thread, n)
            ended = [operation, *works.over(operation)]
        except BaseException as ours:
            fail(PART, ours)
        else:
            for each in ended:
                capture.failed(PART, each, error, on_issue=False)

    def over(operation: Operation, work: Any, synchronous: bool) -> None:
        """A wait returned that was not simply that of the flat path's operation."""
        call = operation.call
        if synchronous and call.counter is not None and not call.device_ends:
            recorder.end_synchronous(operation)
            return
        others = works.over(operation)
        if operation.call.device_ends:
            works.waited_on_device(operation, work)
            return
        source = b"" if operation.call.counter is not None else _source(capture, operation, work)
        recorder.end(operation, source)
        for other in others:
            recorder.end(other)

    def wait(self: Any, *args: Any, **kwargs: Any) -> Any:
        thread = threads.state
        if thread.inside:
            return original(self, *args, **kwargs)
        operation, n, synchronous = None, 0, True
        # No call between a look at the thread's fields and their use: signal handlers run at calls.
        awaited = id(self)
        if thread.work == awaited:
            n = thread.n
        else:
            try:
                operation, synchronous = other(self, awaited)
            except BaseException as error:
                fail(PART, error)
            if operation is None:
                return original(self, *args, **kwargs)
        try:
            thread.inside = True
            result = original(self, *args, **kwargs) if args or kwargs else original(self)
        except BaseException as error:
            thread.inside = False
            failed(thread, n, operation, error)
            raise
        thread.inside = False
        try:
            now = clock()
            if n and thread.n == n and thread.line is not None:
                line = END_SYNCHRONOUS % (n, now - thread.begin, thread.issued)
                thread.line, thread.work = None, 0
                try:
                    recorder.put(line)
                except (ValueError, OSError) as error:
                    recorder.recover(error, line)
            else:
                over(operation or recorder.unfolded(thread, n), self, synchronous)
        except BaseException as error:
            fail(PART, error)
        return result

    return wait


def _source(capture: Capture, operation: Operation, work: Any) -> bytes:
    """Source and sequence number of an any-source receive, known now."""
    try:
        source = int(work._source_rank())
    except Exception:  # the backend does not tell
        return b""
    entry = capture.groups.by_number(operation.call.group)
    if entry is None:
        return b',"y":%d' % source
    counter = entry.stream_counter("recv", source, operation.call.tag, None)
    return b',"y":%d,"q":%d' % (source, counter.next())
