"""Our spans as the SDK's: sampler, limits and resource are those of the environment."""

from __future__ import annotations

import atexit
import os
import threading

from opentelemetry import trace
from opentelemetry.context import Context as OtelContext
from opentelemetry.metrics import MeterProvider, get_meter
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import SpanProcessor, SynchronousMultiSpanProcessor, TracerProvider
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.sdk.trace.sampling import Decision, Sampler
from opentelemetry.trace import Link, NonRecordingSpan, SpanContext, SpanKind, Status, StatusCode

from disttrace_viewer.load.ids import Context
from disttrace_viewer.otlp import attributes
from disttrace_viewer.otlp.journal import JournalReader
from disttrace_viewer.otlp.metrics import Meters
from disttrace_viewer.otlp.pipeline import Pipeline
from disttrace_viewer.otlp.spans import Span

SCOPE = "disttrace"
_POLL_S = 0.25
_LINK = "disttrace.link"


class _Given(IdGenerator):
    """The ids of the span that is about to be made."""

    def __init__(self) -> None:
        self.trace = self.span = 0

    def generate_span_id(self) -> int:
        return self.span

    def generate_trace_id(self) -> int:
        return self.trace


class Tracers:
    """One tracer per process: OTLP groups spans by resource."""

    def __init__(
        self,
        processor: SpanProcessor,
        *,
        like: TracerProvider | None = None,
    ) -> None:
        """``like``: a provider of the program whose resource, sampler and limits hold."""
        self._like = like
        self._ids = _Given()
        self._processors = SynchronousMultiSpanProcessor()
        self._processors.add_span_processor(processor)
        self._tracers: dict[tuple[object, ...], trace.Tracer] = {}
        self._sampler: Sampler | None = None
        self._sampled: dict[str, bool] = {}

    def emit(self, span: Span) -> None:
        """Make the SDK's span of ours and hand it to the processor."""
        tracer = self._tracer(span.process)
        self._ids.trace, self._ids.span = int(span.context.trace, 16), int(span.context.span, 16)
        made = tracer.start_span(
            span.name,
            context=self._above(span.parent),
            kind=SpanKind[span.kind.upper()],
            attributes=span.attributes,
            links=[Link(self._context(c, remote=False), {_LINK: what}) for c, what in span.links],
            start_time=span.start,
            record_exception=False,
        )
        if span.failed is not None:
            made.set_status(Status(StatusCode.ERROR, span.failed))
        for name, at, found in span.events:
            made.add_event(name, found, timestamp=at)
        made.end(end_time=max(span.start, span.end))

    def _above(self, parent: Context | None) -> OtelContext:
        if parent is None:
            return OtelContext()
        above = NonRecordingSpan(self._context(parent, remote=parent.sampled is not None))
        return trace.set_span_in_context(above, OtelContext())

    def _context(self, context: Context, *, remote: bool) -> SpanContext:
        sampled = context.sampled
        if sampled is None:
            sampled = self._is_sampled(context.trace)
        flags = trace.TraceFlags(trace.TraceFlags.SAMPLED if sampled else 0)
        return SpanContext(int(context.trace, 16), int(context.span, 16), remote, flags)

    def _is_sampled(self, trace_id: str) -> bool:
        """What the sampler says of the trace as a whole."""
        found = self._sampled.get(trace_id)
        if found is None:
            assert self._sampler is not None
            result = self._sampler.should_sample(OtelContext(), int(trace_id, 16), SCOPE)
            found = self._sampled[trace_id] = result.decision is Decision.RECORD_AND_SAMPLE
        return found

    def _tracer(self, journal: JournalReader) -> trace.Tracer:
        known = journal.definitions
        key = (journal.base, known.role, known.rank, known.local_rank, known.world_size)
        found = self._tracers.get(key)
        if found is None:
            provider = self._provider(journal)
            self._sampler = self._sampler or provider.sampler
            found = self._tracers[key] = provider.get_tracer(SCOPE)
        return found

    def _provider(self, journal: JournalReader) -> TracerProvider:
        own = resource(journal)
        if self._like is None:
            return TracerProvider(
                resource=Resource.create(own),
                shutdown_on_exit=False,
                active_span_processor=self._processors,
                id_generator=self._ids,
            )
        return TracerProvider(
            resource=Resource(own).merge(self._like.resource),
            sampler=self._like.sampler,
            shutdown_on_exit=False,
            active_span_processor=self._processors,
            id_generator=self._ids,
            span_limits=getattr(self._like, "_span_limits", None),
        )


def resource(journal: JournalReader) -> attributes.Attributes:
    """The resource of a process; a service name only where the environment gives none."""
    found = attributes.process(journal.definitions)
    named = os.environ.get("OTEL_SERVICE_NAME") or "service.name=" in os.environ.get(
        "OTEL_RESOURCE_ATTRIBUTES", ""
    )
    if not named:
        found[SERVICE_NAME] = attributes.service_name(journal.definitions)
    return found


class Feed:
    """From this process's journal to a provider that the program made itself, by a thread, with its
    resource, sampler and processors. gRPC comes in only where the program's own exporter brings it.

    Metrics go to ``meters``, without one to the program's global provider: where it has none
    either, OpenTelemetry's stand-in takes them and does nothing.
    """

    def __init__(
        self,
        provider: TracerProvider,
        meters: MeterProvider | None,
        directory: str,
        base: str,
        *,
        pending_s: float,
    ) -> None:
        tracers = Tracers(provider._active_span_processor, like=provider)
        self._pipeline = Pipeline(tracers.emit, pending_ns=int(pending_s * 1e9))
        meter = get_meter(SCOPE, meter_provider=meters)
        self._pipeline.use(Meters(meter, self._pipeline.in_flight))
        self._pipeline.follow(directory, base)
        self._ended = threading.Event()
        self._pid = os.getpid()
        self._thread = threading.Thread(target=self._run, name="disttrace-feed", daemon=True)
        self._thread.start()
        atexit.register(self.stop)

    def stop(self) -> None:
        """Hand over everything that was recorded so far, and end."""
        atexit.unregister(self.stop)
        if os.getpid() != self._pid or self._ended.is_set():
            return  # a forked child has no thread, and a journal of its own
        self._ended.set()
        self._thread.join()
        self._pipeline.finish()

    def _run(self) -> None:
        while not self._ended.wait(_POLL_S):
            self._pipeline.poll()
