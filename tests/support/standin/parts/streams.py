"""A thread per stream, and what the program's own stream has to wait for."""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Callable
from typing import Any

import torch

from .wire import start

DEVICE_ERROR: list[str] = []
"""What every call of the device says once it has failed."""


def failed() -> None:
    for text in DEVICE_ERROR[-1:]:
        raise RuntimeError(f"CUDA error: {text}")


class Operation:
    """What a stream executes: ``run`` returns when all members have done it."""

    def __init__(self, name: str, seq: int, *, p2p: bool, run: Callable[[], None]) -> None:
        self.name, self.seq, self.p2p, self.run = name, seq, p2p, run
        self.done = threading.Event()
        self.before: threading.Event | None = None
        self.began = self.over = self.over_ns = 0
        self.enqueued = time.monotonic()

    def abort(self) -> None:
        """The kernel ends, and its event is complete, as if it had done its work."""
        if not self.done.is_set():
            self.over, self.over_ns = time.perf_counter_ns(), time.time_ns()
            self.done.set()


class Streams:
    """A thread per stream, and what the program's own stream has to wait for."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self._queues: dict[Any, queue.SimpleQueue[Operation]] = {}
        self._lock = threading.Lock()
        self._all: list[Operation] = []
        self.tail: threading.Event | None = None

    def enqueue(self, stream: Any, operation: Operation) -> None:
        """Execute it after what is on ``stream``, and after what the program's own waits for."""
        with self._lock:
            operation.before = self.tail
            self._all = [each for each in self._all if not each.done.is_set()]
            self._all.append(operation)
            known = self._queues.get(stream)
            if known is None:
                known = self._queues[stream] = queue.SimpleQueue()
                start(self._execute, known)
            known.put(operation)

    def order(self, operation: Operation) -> None:
        """What the program enqueues from now on comes after ``operation``."""
        before = operation.before
        if before is not None and self.tail is not before and self.tail is not None:
            joined, former = threading.Event(), self.tail

            def join() -> None:
                former.wait()
                operation.done.wait()
                joined.set()

            start(join)
            self.tail = joined
        else:
            self.tail = operation.done

    def synchronize(self) -> None:
        """What the host does when it reads a tensor."""
        failed()
        if self.tail is not None:
            self.tail.wait()
        failed()

    def drain(self, number: int | None = None) -> None:
        """What the destruction of a group does."""
        for each in list(self._all):
            each.done.wait()

    def _execute(self, waiting: queue.SimpleQueue[Operation]) -> None:
        while True:
            operation = waiting.get()
            if operation.before is not None:
                operation.before.wait()
            operation.began = time.perf_counter_ns()
            with torch.no_grad():
                operation.run()
            operation.abort()


STREAMS = Streams()
os.register_at_fork(after_in_child=STREAMS.clear)
