"""The tracers that are compared, each a context manager over a folder for what it writes."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any
from unittest import mock

from benchmarks.recorder.series import BARE

OURS = "disttrace"
PLAIN = "disttrace, plain"
"""Ours on the core of ordinary Python functions, which records where nothing was compiled."""
NO_ISSUER = "disttrace, no issuer"
"""Ours in a pass in which nothing was issued by C++."""
WRITTEN = "disttrace, written"
PROFILER = "profiler"
STACKS = "profiler, stacks"
VIZTRACER = "viztracer"
SPAN = "OpenTelemetry"
DETAIL = "DETAIL"
"""Not a tracer but torch's own check of every call: a group made under this debug level."""

Tracer = Callable[[Path], AbstractContextManager[None]]

# What an instrumentation of torch.distributed would wrap.
_FUNCTIONS = (
    "all_reduce",
    "broadcast",
    "all_gather_into_tensor",
    "all_gather_single",
    "barrier",
    "send",
    "recv",
    "isend",
    "irecv",
)
_STORE_METHODS = ("set", "get")


@contextlib.contextmanager
def bare(folder: Path) -> Iterator[None]:
    """Nothing."""
    yield


@contextlib.contextmanager
def disttrace(folder: Path, core: str | None = None) -> Iterator[None]:
    """Ours as it comes: stacks, journal, heartbeats; on the core named, if one is."""
    import disttrace

    disttrace.install(dir=str(folder), core=core)
    try:
        yield
    finally:
        disttrace.uninstall()


@contextlib.contextmanager
def disttrace_written(folder: Path) -> Iterator[None]:
    """Ours on a file system whose reserved blocks cannot be trusted: a system call per line."""
    answer = ("written", "asked for")
    written = mock.patch("disttrace.journal.segment.mechanism", return_value=answer)
    with written, disttrace(folder):
        yield


@contextlib.contextmanager
def profiler(folder: Path, *, stacks: bool) -> Iterator[None]:
    """``torch.profiler`` on the CPU, with stacks and shapes or without both."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], with_stack=stacks, record_shapes=stacks):
        yield


@functools.cache
def _viztracer() -> Any:
    from viztracer import VizTracer

    return VizTracer(verbose=0)  # allocates room for a million events: once per process


@contextlib.contextmanager
def viztracer(folder: Path) -> Iterator[None]:
    """VizTracer with its defaults: every function call of the process."""
    tracer = _viztracer()
    tracer.start()
    try:
        yield
    finally:
        tracer.stop()
        tracer.clear()


@contextlib.contextmanager
def opentelemetry(folder: Path) -> Iterator[None]:
    """A span made in the call, as instrumentations do, batched for an exporter that drops it."""
    from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

    class Dropping(SpanExporter):
        def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
            return SpanExportResult.SUCCESS

    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(Dropping(), max_queue_size=1 << 16))
    tracer = provider.get_tracer("benchmark")

    def spanned(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            attributes = {"rpc.method": name, "messaging.destination": "default"}
            with tracer.start_as_current_span(name, attributes=attributes):
                return original(*args, **kwargs)

        return call

    with contextlib.ExitStack() as stack:
        for owner, name in _instrumented():
            wrapped = spanned(name, getattr(owner, name))
            stack.enter_context(mock.patch.object(owner, name, wrapped))
        stack.callback(provider.shutdown)
        yield


def _instrumented() -> Iterator[tuple[Any, str]]:
    import torch.distributed as dist

    for name in _FUNCTIONS:
        if hasattr(dist, name):
            yield dist, name
    for name in _STORE_METHODS:
        yield dist.Store, name


_ALL: Mapping[str, tuple[Tracer, str | None]] = {
    BARE: (bare, None),
    OURS: (disttrace, None),
    PLAIN: (functools.partial(disttrace, core="python"), None),
    NO_ISSUER: (disttrace, None),
    WRITTEN: (disttrace_written, None),
    PROFILER: (functools.partial(profiler, stacks=False), None),
    STACKS: (functools.partial(profiler, stacks=True), None),
    VIZTRACER: (viztracer, "viztracer"),
    SPAN: (opentelemetry, "opentelemetry.sdk"),
}


def available(*names: str) -> dict[str, Tracer]:
    """Tracers by name, in this order, without those whose package is not installed here."""
    chosen = {}
    for name in names:
        tracer, package = _ALL[name]
        if package is None or _installed(package):
            chosen[name] = tracer
    return chosen


def _installed(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:  # its parent is missing
        return False
