"""Instrumentation of completion asked for without a wait: futures, ``is_completed`` loops, streams.

Such a program has not forgotten its work, nor has one that hands it to DDP's reducer, which waits
for it in C++. What it sees complete is complete; what it follows by a
future is followed to its end by the poller, which the live thread runs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch._C._distributed_c10d import Reducer, Work

from disttrace.capture.wrapping.context import Capture
from disttrace.capture.wrapping.wrappers import after

PART = "completion without a wait"

# What each method says: it returns whether the work is complete, or a future outlives the Work.
_TELLS = "is_completed"
_OUTLIVES = frozenset({"get_future", "get_future_result"})
_HANDED = "_set_forward_pass_work_handle"
METHODS = (_TELLS, *sorted(_OUTLIVES), "synchronize", "result", "block_current_stream")


def install(capture: Capture) -> None:
    """Patch what this torch has, and have works polled."""
    works = capture.works

    def last_look() -> None:
        """What is complete by now is on record as complete, and nothing is held."""
        works.poll(everything=True)
        works.release()

    works.is_completed = Work.is_completed
    works.wait = Work.wait
    capture.recorder.core.wake = capture.wake
    capture.engine.on_undo(PART, "works held", works.release)
    capture.poll(PART, works.poll, last_look)

    def instrument(owner: type) -> None:
        if issubclass(owner, Work):
            for name in METHODS:
                wrapper = after(capture, PART, _look(capture, name))
                capture.engine.attribute(PART, owner, name, wrapper)

    capture.instrumenters.append(instrument)
    instrument(Work)
    if hasattr(Reducer, _HANDED):
        capture.engine.attribute(PART, Reducer, _HANDED, after(capture, PART, _handed(capture)))


def _look(capture: Capture, name: str) -> Callable[..., None]:
    works, threads = capture.works, capture.recorder.threads
    get, tells, outlives = works.get, name == _TELLS, name in _OUTLIVES

    def look(result: Any, work: Any, *args: Any, **kwargs: Any) -> None:
        operation = get(work)
        if operation is not None and not threads.state.inside:
            works.asked(operation, name)
            if tells:
                works.observed(operation, complete=bool(result))
            elif outlives:
                works.keep(work)

    return look


def _handed(capture: Capture) -> Callable[..., None]:
    works = capture.works

    def handed(result: Any, reducer: Any, work: Any, *args: Any, **kwargs: Any) -> None:
        operation = works.get(work)
        if operation is not None:
            works.asked(operation, "Reducer")

    return handed
