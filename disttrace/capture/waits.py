"""The door for waiting: ``Work.wait`` in every class that defines it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from disttrace.capture.context import Capture
from disttrace.operation import Operation

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
    threads, get, end_synchronous = recorder.threads, works.get, recorder.end_synchronous

    def claim(work: Any) -> Operation | None:
        """The asynchronous operation that this wait is for; None if it is over or unknown."""
        reference = get(id(work))
        if reference is None or reference() is not work:
            return None
        recorder.wait_begins(reference.operation)
        return reference.operation

    def over(operation: Operation, work: Any) -> None:
        """A wait returned that was not simply that of a synchronous call."""
        others = works.over(operation)
        if operation.call.device_ends:
            works.on_device(operation, None)
            return
        source = b"" if operation.call.counter is not None else _source(capture, operation, work)
        recorder.end(operation, source)
        for other in others:
            recorder.end(other)

    def wait(self: Any, *args: Any, **kwargs: Any) -> Any:
        thread = threads.state
        if thread.inside:
            return original(self, *args, **kwargs)
        operation = thread.sync
        synchronous = False
        try:
            if operation is not None:
                thread.sync = None
                synchronous = operation.work == id(self)
            if not synchronous:
                operation = claim(self)
        except BaseException as error:
            fail(PART, error)
        if operation is None:
            return original(self, *args, **kwargs)
        try:
            thread.inside = True
            result = original(self, *args, **kwargs)
        except BaseException as error:
            thread.inside = False
            for other in (operation, *works.over(operation)):
                capture.failed(PART, other, error, on_issue=False)
            raise
        thread.inside = False
        try:
            call = operation.call
            if synchronous and call.counter is not None and not call.device_ends:
                end_synchronous(operation)
            else:
                over(operation, self)
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
