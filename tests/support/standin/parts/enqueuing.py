"""A group whose calls enqueue: its entries, streams, batches, communicators, and its end."""

from __future__ import annotations

import functools
import itertools
import threading
import time
from collections.abc import Callable
from typing import Any

import torch
import torch._C._distributed_c10d as c10d
from torch._C._distributed_c10d import ProcessGroup
from torch.distributed import DistBackendError

from . import graphs, watchdog
from .recorder import RECORDER
from .semantics import CHOSEN, COMMUNICATORS, CREATION
from .streams import STREAMS, Operation, failed
from .wire import wire
from .work import StandInWork

Run = Callable[[Any, list[Any]], None]  # of a key that all who take part know, and tensors

_number = itertools.count()
_nth: dict[str, int] = {}


class Enqueues(ProcessGroup):
    def __init__(
        self, options: Any, rank: int, size: int, ranks: list[int], name: str, timeout_s: float
    ) -> None:
        super().__init__(rank, size)
        self._rank, self._size, self._options = rank, size, options
        self.members = ranks or list(range(size))
        self.number = next(_number)
        self.label, self.description = name, "default_pg" if not ranks else "undefined"
        self.timeout_s = timeout_s
        nth = _nth[name] = _nth.get(name, 0) + 1
        self._key = (name, nth, tuple(self.members))
        self._collective, self._p2p = itertools.count(1), itertools.count(1)
        self._issued: dict[Any, Any] = {}  # counters of what goes the same way
        self._connected: set[Any] = set()
        self._batch: list[Operation] | None = None  # what is coalesced
        self._launch = 0  # its number
        self.open: list[Operation] = []
        self.error = getattr(c10d.ErrorType, "SUCCESS", None) if hasattr(c10d, "ErrorType") else 0
        self._aborted = False
        wire(self.members[rank])
        watchdog.watch(self)
        if COMMUNICATORS == "eager":
            self._connect("collective")

    # What torch asks of a group.
    def getBackendName(self) -> str:  # noqa: N802
        return CHOSEN.backend

    def getSize(self) -> int:  # noqa: N802
        return self._size

    def _get_backend(self, device: Any) -> Any:
        return self

    @property
    def group_name(self) -> str:
        return self.label

    @property
    def pg_name(self) -> str:
        return self.label

    def shutdown(self) -> None:
        STREAMS.drain()

    def get_error(self) -> Any:
        """As of torch's watchdog, which sets it before it aborts."""
        return self.error

    def abort_all(self) -> None:
        """As ``ncclCommAbort`` of all communicators: what runs ends, and looks complete."""
        self._aborted = True
        for each in self.open:
            each.abort()

    def begin_batch(self) -> None:
        """What is issued until ``end_batch`` is one launch."""
        self._batch, self._launch = [], next(self._p2p)
        self._connect("collective")

    def _coalesced(self, name: str, p2p: bool, run: Callable[[], None], tensors: Any) -> Any:
        """A part of a launch: an entry without events, which on 2.15 is complete at once."""
        assert self._batch is not None
        part = Operation(name, self._launch, p2p=p2p, run=run)
        self._batch.append(part)
        if CHOSEN.hooked:
            part.abort()
        RECORDER.record(self, part)
        return StandInWork(self, part, tensors) if CHOSEN.hooked else None

    def end_batch(self) -> Any:
        """Launch it: all parts run at one time. On 2.15 nothing but its Work tells of it."""
        parts, self._batch = self._batch or [], None

        def run() -> None:
            runs = [torch.no_grad()(part.run) for part in parts]
            threads = [threading.Thread(target=run, daemon=True) for run in runs]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

        self._last = whole = Operation("coalesced", self._launch, p2p=True, run=run)
        if not CHOSEN.hooked:
            RECORDER.record(self, whole)
        self._put("collective", whole)
        return StandInWork(self, whole, [])

    def _connect(self, stream: Any) -> None:
        """Make the communicator that is used for the first time, with all of its members."""
        others = [r for r in range(self._size) if r != self._rank]
        if stream != "collective":
            others = [stream[1]]
            stream = min(self._rank, stream[1]), max(self._rank, stream[1])
        if CREATION is None or stream in self._connected:
            return
        self._connected.add(stream)
        for rank in others:
            wire().send(self.members[rank], (self._key, "unique id", stream, self._rank), True)
        for rank in others:
            wire().receive((self._key, "unique id", stream, rank))
        time.sleep(float(CREATION))

    def _put(self, stream: Any, operation: Operation) -> None:
        self.open = [each for each in self.open if not each.done.is_set()]
        self.open.append(operation)
        STREAMS.enqueue((self.number, stream), operation)

    def key(self, kind: str, route: Any) -> Any:
        """What the next operation of that kind and way is known by to all who take part."""
        counter = self._issued.setdefault((kind, route), itertools.count())
        return (self._key, kind, route, next(counter))

    def enqueue(
        self, name: str, stream: Any, run: Run, tensors: Any, *, route: Any = "collective",
        asynchronous: bool = True,
    ) -> Any:  # fmt: skip
        """Have it run on ``stream``; messages have a ``route`` that both ends know."""
        failed()
        if self._aborted:
            raise DistBackendError("NCCL communicator was aborted")
        if (graph := graphs.capturing()) is not None:
            graph.parts.append((self, name, stream, run, tensors, route))
            return StandInWork(self, graphs.nothing(), tensors)
        p2p = route != "collective"
        sent = [each.detach().clone() for each in tensors]
        action = functools.partial(run, self.key("issued", route), sent)
        if self._batch is not None:
            return self._coalesced(name, p2p, action, tensors)
        seq = next(self._p2p if p2p else self._collective)
        self._last = operation = Operation(name, seq, p2p=p2p, run=action)
        if COMMUNICATORS == "nonblocking":  # torch waits for it later, with the entry made
            RECORDER.record(self, operation)
            self._connect(stream)
        else:
            self._connect(stream)
            RECORDER.record(self, operation)
        self._put(stream, operation)
        if not asynchronous and not CHOSEN.sync_returns_work:
            STREAMS.order(operation)
            return None
        return StandInWork(self, operation, tensors)

    def replayed(self, name: str, stream: Any, run: Run, tensors: Any, route: Any) -> None:
        """A graph launches it: no entry tells of it."""
        sent = [each.detach().clone() for each in tensors]
        action = functools.partial(run, self.key("replayed", route), sent)
        operation = Operation(name, 0, p2p=route != "collective", run=action)
        self._put(stream, operation)
        STREAMS.order(operation)

    def shrunk(self, excluded: list[int], flags: int = 0, _: Any = None) -> Any:
        """As ``ncclCommShrink``: a group of the others; flag 1 aborts what is in flight."""
        if flags == 1:
            self.abort_all()
        members = [m for r, m in enumerate(self.members) if r not in excluded]
        rank = members.index(self.members[self._rank])
        name = f"{self.label}:shrunk"
        return type(self)(self._options, rank, len(members), members, name, self.timeout_s)
