"""Graphs, events and the failure of a device, as far as a tracer asks ``torch.cuda`` for them."""

from __future__ import annotations

import threading
from typing import Any

import torch

from .streams import DEVICE_ERROR, STREAMS, Operation, failed

_current = threading.local()


def capturing() -> Any:
    """The graph that the calling thread captures into, None where it does not."""
    return getattr(_current, "graph", None)


def nothing() -> Operation:
    """What a captured call gives to wait for."""
    made = Operation("captured", 0, p2p=False, run=lambda: None)
    made.abort()
    return made


class Graph:
    """What is issued between its ends runs at each replay."""

    def __init__(self, keep_graph: bool = False) -> None:
        self.parts: list[tuple[Any, ...]] = []

    def capture_begin(self, *args: Any, **kwargs: Any) -> None:
        """From now on nothing of this thread's runs."""
        self.parts = []
        _current.graph = self

    def capture_end(self) -> None:
        _current.graph = None

    def replay(self) -> None:
        failed()
        for group, *rest in self.parts:
            group.replayed(*rest)


class Foreign(Graph):
    """One that another library captures: no method of torch's is called."""

    def __enter__(self) -> Foreign:
        Graph.capture_begin(self)
        return self

    def __exit__(self, *_: object) -> None:
        Graph.capture_end(self)


class Event:
    """It is over when the stream had been got through at which it was recorded."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._tail: threading.Event | None = None

    def record(self, stream: Any = None) -> None:
        self._tail = None if stream is not None else STREAMS.tail

    def query(self) -> bool:
        failed()
        return self._tail is None or self._tail.is_set()


class Stream:
    """Another one than the program's own, on which nothing is."""


def fail(text: str) -> None:
    """The device has failed: a kernel ran into an assertion or outside of its memory."""
    DEVICE_ERROR.append(text)


def install() -> None:
    for name, what in {
        "is_initialized": lambda: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "set_device": lambda device: None,
        "is_current_stream_capturing": lambda: capturing() is not None,
        "Event": Event,
        "Stream": Stream,
        "CUDAGraph": Graph,
    }.items():
        setattr(torch.cuda, name, what)
    torch.cuda.graphs.CUDAGraph = Graph
    torch._C._cuda_isCurrentStreamCapturing = lambda: capturing() is not None
    torch._C._cuda_hasPrimaryContext = lambda index: True
