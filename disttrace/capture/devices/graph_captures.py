"""CUDA graphs being captured: who captures, and that no event is queried meanwhile."""

from __future__ import annotations

import contextlib
import functools
import sys
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

from disttrace.capture.devices.graph_replays import GraphReplays
from disttrace.capture.wrapping.context import Capture
from disttrace.journal.originals import Lock, get_ident

_T = TypeVar("_T")

# A query under way is awaited so long before a capture begins: it takes milliseconds, or hangs in
# the driver, where the capture would hang too.
_PATIENCE_S = 2.0


class GraphCaptures:
    """A query of an event from another thread breaks a capture in its strictest mode."""

    def __init__(self, replays: GraphReplays, on_begin: Callable[[], None]) -> None:
        self._replays = replays
        self._on_begin = on_begin
        self.forget()

    def forget(self) -> None:
        """At first, and after fork in the child."""
        self._by: dict[int, int] = {}  # the capturing thread, by graph
        self._graphs: dict[int, weakref.ref[Any]] = {}
        self._asking = Lock()

    def began(self, graph: int) -> None:
        """A capture is about to begin, on this thread: wait for the query under way."""
        self._by[graph] = get_ident()
        self._replays.began(graph)
        self._on_begin()
        if self._asking.acquire(timeout=_PATIENCE_S):
            self._asking.release()

    def ended(self, graph: int) -> None:
        """It is over, or it failed."""
        self._by.pop(graph, None)
        self._graphs.pop(graph, None)

    def here(self) -> bool:
        """Whether this thread captures: what it issues runs when the graph is replayed."""
        if self._by and get_ident() in self._by.values():
            return True
        return _captured_by_others()

    def any(self) -> bool:
        """Whether a capture is going on, on whichever thread."""
        return bool(self._by)

    def query(self, ask: Callable[[], _T]) -> _T | None:
        """What ``ask`` says; None where something is captured, and it is not called."""
        with self._asking:
            return None if self._by else ask()

    def graph(self) -> int | None:
        """The graph into which this thread's operations go; None for one that is not torch's.

        Autograd's threads work for the one that captures.
        """
        by = self._by
        mine = [graph for graph, thread in by.items() if thread == get_ident()]
        return mine[-1] if mine else next(iter(by), None) if len(by) == 1 else None

    def watch(self, capture: Capture, part: str, module: Any) -> None:
        """Patch the two ends of ``torch.cuda.graphs.CUDAGraph``'s captures, and its replays."""
        capture.engine.attribute(part, module.CUDAGraph, "replay", self._replays.wrapper)
        for name in ("capture_begin", "capture_end", "capture_end_post"):
            wrapper = functools.partial(self._wrapper, name == "capture_begin")
            capture.engine.attribute(part, module.CUDAGraph, name, wrapper)

    def _watch_end(self, graph: Any) -> None:
        """A capture whose graph is gone is over, also where nobody ended it."""
        number = id(graph)
        with contextlib.suppress(TypeError):  # no weak references
            # C's, for what a signal handler raises in a callback is lost: ``_by.pop(number, ref)``.
            gone = functools.partial(self._by.pop, number)
            self._graphs[number] = weakref.ref(graph, gone)

    def _wrapper(self, begins: bool, original: Callable[..., Any]) -> Callable[..., Any]:
        def method(graph: Any, *args: Any, **kwargs: Any) -> Any:
            if begins:
                self.began(id(graph))
                self._watch_end(graph)
            over = True
            try:
                result = original(graph, *args, **kwargs)
                over = not begins
                return result
            finally:
                if over:
                    self._replays.captured(graph)
                    self.ended(id(graph))

        return method


def _captured_by_others() -> bool:
    """Whether this thread's stream is captured, though no graph of torch's began it: by CUDA's own
    bindings, by a compiler, by autograd's threads for the one that began it.

    Two questions to the driver, on the calling thread and its device: whether there is a context
    (none is made), and whether the stream is captured, as NCCL's own issue asks it each time.
    """
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return False
    try:
        return bool(torch.cuda.is_current_stream_capturing())
    except RuntimeError:
        return False  # another stream is captured, or the device has failed: an operation says so
