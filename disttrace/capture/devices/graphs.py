"""CUDA graphs: captures, while which no event is queried, and replays, each of them one operation
of each group of which the graph holds collectives.

What a graph holds was recorded at capture and runs at each replay. A rank that replays another
number of times, or a graph with other collectives, differs from the others as by any other call:
that needs no question to a device. One event after a replay shows when it is over.
"""

from __future__ import annotations

import functools
import itertools
import sys
import weakref
import zlib
from collections.abc import Callable
from typing import Any, TypeVar

from disttrace.capture.objects.registry import Registry
from disttrace.capture.wrapping.context import Capture
from disttrace.capture.wrapping.wrappers import Function
from disttrace.foreign import ours
from disttrace.journal.format import COLLECTIVE, REPLAYED
from disttrace.journal.originals import Lock, get_ident
from disttrace.recording.operation import CallRecord, Operation

_RUNS = 8  # of like operations; of more a checksum is shown

# operation, and what shows that it is over (None: nothing does)
Follow = Callable[[Operation, "Callable[[], bool] | None"], None]


_T = TypeVar("_T")

# A query under way is awaited so long before a capture begins: it takes milliseconds, or hangs in
# the driver, where the capture would hang too.
_PATIENCE_S = 2.0


class Graphs:
    """What is captured now, and what each graph holds, by group. ``follow`` gets each replay's
    operations. A query of an event from another thread breaks a capture in its strictest mode."""

    def __init__(
        self, capture: Capture, part: str, follow: Follow, on_begin: Callable[[], None]
    ) -> None:
        self._capture, self._part, self._follow = capture, part, follow
        self._on_begin = on_begin
        self._numbers = itertools.count(1)
        self.forget()

    def forget(self) -> None:
        self._by: dict[int, int] = {}  # the capturing thread, by graph
        self._graphs: dict[int, weakref.ref[Any]] = {}
        self._asking = Lock()
        self._held: dict[int, dict[int, list[str]]] = {}
        self._names: Registry[tuple[int, list[tuple[int, str]]]] = Registry()

    def watch(self, module: Any) -> None:
        """Patch the two ends of ``torch.cuda.graphs.CUDAGraph``'s captures, and its replays."""
        patch = functools.partial(self._capture.engine.attribute, self._part, module.CUDAGraph)
        patch("replay", self._replaying)
        for name in ("capture_begin", "capture_end", "capture_end_post"):
            patch(name, functools.partial(self._capturing, name == "capture_begin"))

    # -- captures ----------------------------------------------------------------------------

    def began(self, graph: int) -> None:
        """A capture is about to begin, on this thread: wait for the query under way. What the graph
        held before is gone."""
        self._by[graph] = get_ident()
        self._held.pop(graph, None)
        self._names.entries.pop(graph, None)
        self._on_begin()
        if self._asking.acquire(timeout=_PATIENCE_S):
            self._asking.release()

    def ended(self, graph: int) -> None:
        self._by.pop(graph, None)
        self._graphs.pop(graph, None)

    def here(self) -> bool:
        """Whether this thread captures: what it issues runs when the graph is replayed."""
        if self._by and get_ident() in self._by.values():
            return True
        return _captured_by_others()

    def any(self) -> bool:
        return bool(self._by)

    def query(self, ask: Callable[[], _T]) -> _T | None:
        """What ``ask`` gives; None where something is captured, and it is not called."""
        with self._asking:
            return None if self._by else ask()

    def holds(self, call: CallRecord) -> None:
        """A collective was captured, in this thread or one of autograd's, if by torch's means."""
        by = self._by
        mine = [graph for graph, thread in by.items() if thread == get_ident()]
        graph = mine[-1] if mine else next(iter(by), None) if len(by) == 1 else None
        if graph is not None and call.group is not None and call.counter is not None:
            self._held.setdefault(graph, {}).setdefault(call.group, []).append(call.op)

    def _watch_end(self, graph: Any) -> None:
        """A capture whose graph is gone is over, also where it was not ended."""
        number = id(graph)
        # C's, for what a signal handler raises in a callback is lost: ``_by.pop(number, ref)``.
        gone = functools.partial(self._by.pop, number)
        try:
            self._graphs[number] = weakref.ref(graph, gone)
        except ours(TypeError):
            pass  # no weak references

    def _capturing(self, begins: bool, original: Function) -> Function:
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
                    self._name(graph)
                    self.ended(id(graph))

        return method

    def _name(self, graph: Any) -> None:
        held = self._held.pop(id(graph), None)
        if held is not None:
            names = [(group, f"graph_replay({_contents(ops)})") for group, ops in held.items()]
            self._names.add(graph, (next(self._numbers), names))

    # -- replays -----------------------------------------------------------------------------

    def _replaying(self, original: Function) -> Function:
        guard, part = self._capture.guard, self._part

        def replay(graph: Any, *args: Any, **kwargs: Any) -> Any:
            if id(graph) not in self._names.entries:
                return original(graph, *args, **kwargs)
            begun = guard(part, self._begin, graph, sys._getframe(1)) or []
            try:
                result = original(graph, *args, **kwargs)
            except BaseException as error:
                guard(part, self._failed, begun, error)
                raise
            guard(part, self._issued, begun)
            return result

        return replay

    def _begin(self, graph: Any, frame: Any) -> list[Operation]:
        number, names = self._names.entries[id(graph)]
        found = []
        keys = {"kind": COLLECTIVE, "backend": REPLAYED, "device": "cuda", "async": True}
        for group, name in names:
            entry = self._capture.groups.by_number(group)
            if entry is not None:
                counter, key = entry.counter(REPLAYED), (REPLAYED, group, number)
                told = {**keys, "group": group, "args": {"graph": number}}
                found.append(
                    self._capture.begin(frame, name, key, told, counter=counter, synchronous=False)
                )
        return found

    def _issued(self, begun: list[Operation]) -> None:
        over = after(None)
        for operation in begun:
            self._capture.recorder.issued(operation)
            self._follow(operation, over)

    def _failed(self, begun: list[Operation], error: BaseException) -> None:
        for operation in begun:
            self._capture.recorder.failed(operation, error, on_issue=True)


def _contents(ops: list[str]) -> str:
    """``2 all_reduce, all_gather``: in their order, and a checksum where these are too many."""
    runs = [(op, len(list(same))) for op, same in itertools.groupby(ops)]
    shown = [op if count == 1 else f"{count} {op}" for op, count in runs]
    if len(shown) <= _RUNS:
        return ", ".join(shown)
    more = f"{len(shown) - _RUNS} more, {zlib.crc32(repr(runs).encode()):08x}"
    return ", ".join([*shown[:_RUNS], more])


def after(stream: Any) -> Callable[[], bool] | None:
    """Whether the device is through what ``stream`` (None: the calling thread's) holds now."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return None
    event = torch.cuda.Event()
    event.record(*([stream] if isinstance(stream, torch.cuda.Stream) else []))
    found: Callable[[], bool] = event.query
    return found


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
    except ours(RuntimeError):
        return False  # another stream is captured, or the device failed: an operation raises it
