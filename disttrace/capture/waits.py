"""The door for waiting: ``Work.wait`` in every class that defines it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from disttrace.capture.context import Capture
from disttrace.recorder import Operation, ThreadState

PART = "waits"


def install(capture: Capture) -> None:
    """Patch ``wait`` in Work and in the subclasses that have their own."""
    from torch._C._distributed_c10d import Work

    for owner in (Work, *_subclasses(Work)):
        if "wait" in owner.__dict__:
            capture.engine.attribute(PART, owner, "wait", lambda original: _door(capture, original))


def _subclasses(owner: type) -> Iterator[type]:
    for child in owner.__subclasses__():
        yield child
        yield from _subclasses(child)


def _door(capture: Capture, original: Callable[..., Any]) -> Callable[..., Any]:
    recorder, works, fail = capture.recorder, capture.works, capture.fail
    threads, get = recorder.threads, works.get

    def claim(thread: ThreadState, work: Any) -> Operation | None:
        """The operation that this wait is for; None if it is over or was never seen."""
        operation = thread.sync
        if operation is not None:
            thread.sync = None
            if operation.work == id(work):
                return operation
        reference = get(id(work))
        if reference is None or reference() is not work:
            return None
        operation = reference.operation
        recorder.wait_begins(operation)
        return operation

    def over(operation: Operation, work: Any) -> None:
        works.over(operation)
        if operation.call.counter is None:
            recorder.end(operation, _source(capture, operation, work))
        else:
            recorder.end(operation)

    def wait(self: Any, *args: Any, **kwargs: Any) -> Any:
        thread = threads.state
        if thread.inside:
            return original(self, *args, **kwargs)
        operation = None
        try:
            operation = claim(thread, self)
        except BaseException as error:
            fail(PART, error)
        if operation is None:
            return original(self, *args, **kwargs)
        try:
            thread.inside = True
            result = original(self, *args, **kwargs)
        except BaseException as error:
            thread.inside = False
            try:
                works.over(operation)
                recorder.failed(operation, error, on_issue=False)
            except BaseException as ours:
                fail(PART, ours)
            raise
        thread.inside = False
        try:
            if not operation.call.device_ends:
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
    with capture.recorder.lock:
        counter[0] += 1
        return b',"y":%d,"q":%d' % (source, counter[0])
