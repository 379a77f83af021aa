"""Instrumentation of waiting: ``Work.wait`` in every class that defines it; and of completion
without a wait: futures, ``is_completed`` loops, streams.

A program that does the latter has not forgotten its work, nor has one that hands it to DDP's
reducer, which waits for it in C++. What it sees complete is complete; what it follows by a future
is followed to its end by the poller, which the live thread runs.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torch._C._distributed_c10d import Reducer, Work

from disttrace import foreign
from disttrace.capture.wrapping import hot_path
from disttrace.capture.wrapping.context import Capture
from disttrace.capture.wrapping.wrappers import Function, Part, after
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
        made = hot_path.native_wrapper(self, original, "wait")
        return hot_path.waiting(self, original, owner, "wait") if made is None else made

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


QUERIES = "completion without a wait"

_OUTLIVES = frozenset({"get_future", "get_future_result"})  # a future outlives the Work
METHODS = ("is_completed", *sorted(_OUTLIVES), "synchronize", "result", "block_current_stream")


def install_queries(capture: Capture) -> None:
    """Patch what this torch has, and have works polled."""
    works, threads = capture.works, capture.recorder.threads
    attribute = functools.partial(capture.engine.attribute, QUERIES)

    def last_look() -> None:
        """What is complete by now is on record as complete, and nothing is held."""
        works.poll(everything=True)
        works.release()

    original = Work.is_completed

    def is_completed(work: Any) -> bool:
        """The method as it was; that of a Python subclass, which the original knows nothing of."""
        if not _has_own(type(work)):
            return bool(original(work))
        state = threads.state
        before, state.inside = state.inside, True  # it is not the program that asks
        try:
            return bool(work.is_completed())
        finally:
            state.inside = before

    works.is_completed = is_completed
    works.wait = Work.wait
    capture.recorder.core.wake = capture.wake
    let_go = functools.partial(capture.guard, QUERIES, last_look)
    capture.engine.on_undo(QUERIES, "works held", let_go)
    capture.poll(QUERIES, works.poll, last_look)

    def asking(name: str) -> Callable[..., Any]:
        get, tells, outlives = works.get, name == "is_completed", name in _OUTLIVES

        def look(result: Any, work: Any, *args: Any, **kwargs: Any) -> None:
            operation = get(work)
            if operation is not None and not threads.state.inside:
                works.polled(operation, name)
                if tells:
                    works.observed(operation, complete=bool(result))
                elif outlives:
                    works.keep(work)

        return after(capture, QUERIES, look)

    def handed(result: Any, reducer: Any, work: Any, *args: Any, **kwargs: Any) -> None:
        operation = works.get(work)
        if operation is not None:
            works.polled(operation, "Reducer")

    def instrument(owner: type) -> None:
        for name in METHODS:
            attribute(owner, name, asking(name))

    capture.instrument(Work, by=instrument)
    attribute(Reducer, "_set_forward_pass_work_handle", after(capture, QUERIES, handed))


def _has_own(cls: type) -> bool:
    """Whether a class of works, or one between it and torch's, has its own ``is_completed``."""
    above = (one for one in cls.__mro__ if one is Work or "is_completed" in vars(one))
    return next(above, Work) is not Work
