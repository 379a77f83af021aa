"""Instrumentation of waiting: ``Work.wait`` in every class that defines it."""

from __future__ import annotations

import functools
from typing import Any

from torch._C._distributed_c10d import Work

from disttrace import foreign
from disttrace.capture.hot_path import native, plain
from disttrace.capture.wrapping.context import Capture
from disttrace.capture.wrapping.wrappers import Function, Part
from disttrace.recording.operation import Operation, ThreadState

PART = "waits"


def install(capture: Capture) -> None:
    """Patch ``wait`` in Work; subclasses.py does it in those that have their own."""
    part = WaitPart(capture, PART)

    def instrument(owner: type) -> None:
        capture.engine.attribute(PART, owner, "wait", functools.partial(part.wrapper, owner))

    capture.instrument(Work, by=instrument)


class WaitPart(Part):
    """The wrapper of waits, and what it leaves to ordinary functions."""

    def wrapper(self, owner: type, original: Function) -> Any:
        """What stands in the place of ``original`` on ``owner``."""
        made = native.wrapper(self, original, "wait")
        return plain.waiting(self, original, owner, "wait") if made is None else made

    def returned(self, thread: ThreadState, operation: Operation, work: Any) -> None:
        recorder, works = self.capture.recorder, self.capture.works
        others = works.over(operation)
        if operation.call.device_ends:
            works.device.waited(operation, work)
            return
        any_source = operation.call.counter is None
        recorder.end(operation, _source(self.capture, operation, work) if any_source else b"")
        for other in others:
            recorder.end(other)

    def failed(self, thread: ThreadState, operation: Operation, error: BaseException) -> None:
        self.capture.raised(error)
        if self._goes_on(operation):
            for each in (operation, *operation.more):
                self.capture.recorder.gave_up(each, error)
            return
        for each in (operation, *self.capture.works.over(operation)):
            self.capture.recorder.failed(each, error, on_issue=False)

    def _goes_on(self, operation: Operation) -> bool:
        """Whether its Work is not over although a wait for it raised: the program gave it a time
        limit, and may wait again. (A receive of gloo is over then: it closes the connection.)
        """
        reference = operation.reference
        work = None if reference is None or operation.call.device_ends else reference()
        return work is not None and foreign.attempt(self.capture.works.is_completed, work) is False


def _source(capture: Capture, operation: Operation, work: Any) -> bytes:
    """Source and sequence number of an any-source receive, known now."""
    source = foreign.attempt(lambda: int(work._source_rank()))
    if source is None:  # the backend does not tell
        return b""
    entry, tag = capture.groups.by_number(operation.call.group), operation.call.tag
    new = not capture.recorder.exhausted
    counter = entry.stream_counter("recv", source, tag, None, new=new) if entry else None
    return b',"y":%d' % source + (b',"q":%d' % counter.next() if counter is not None else b"")
