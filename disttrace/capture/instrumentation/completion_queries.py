"""Instrumentation of completion without a wait: futures, ``is_completed`` loops, streams.

Such a program has not forgotten its work, nor has one that hands it to DDP's reducer, which waits
for it in C++. What it sees complete is complete; what it follows by a
future is followed to its end by the poller, which the live thread runs.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torch._C._distributed_c10d import Reducer, Work

from disttrace.capture.wrapping.context import Capture
from disttrace.capture.wrapping.wrappers import after

PART = "completion without a wait"

_OUTLIVES = frozenset({"get_future", "get_future_result"})  # a future outlives the Work
METHODS = ("is_completed", *sorted(_OUTLIVES), "synchronize", "result", "block_current_stream")


def install(capture: Capture) -> None:
    """Patch what this torch has, and have works polled."""
    works, threads = capture.works, capture.recorder.threads
    attribute = functools.partial(capture.engine.attribute, PART)

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
    let_go = functools.partial(capture.guard, PART, last_look)
    capture.engine.on_undo(PART, "works held", let_go)
    capture.poll(PART, works.poll, last_look)

    def asking(name: str) -> Callable[..., Any]:
        get, tells, outlives = works.get, name == "is_completed", name in _OUTLIVES

        def look(result: Any, work: Any, *args: Any, **kwargs: Any) -> None:
            operation = get(work)
            if operation is not None and not threads.state.inside:
                works.asked(operation, name)
                if tells:
                    works.observed(operation, complete=bool(result))
                elif outlives:
                    works.keep(work)

        return after(capture, PART, look)

    def handed(result: Any, reducer: Any, work: Any, *args: Any, **kwargs: Any) -> None:
        operation = works.get(work)
        if operation is not None:
            works.asked(operation, "Reducer")

    def instrument(owner: type) -> None:
        for name in METHODS:
            attribute(owner, name, asking(name))

    capture.instrument(Work, by=instrument)
    attribute(Reducer, "_set_forward_pass_work_handle", after(capture, PART, handed))


def _has_own(cls: type) -> bool:
    """Whether a class of works, or one between it and torch's, has its own ``is_completed``."""
    above = (one for one in cls.__mro__ if one is Work or "is_completed" in vars(one))
    return next(above, Work) is not Work
