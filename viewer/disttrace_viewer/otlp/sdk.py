"""Our spans as the SDK's: sampler, limits and resource are those of the environment."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any

from opentelemetry import trace
from opentelemetry.context import Context as OtelContext
from opentelemetry.metrics import Meter, Observation
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import SpanProcessor, SynchronousMultiSpanProcessor, TracerProvider
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.sdk.trace.sampling import Decision, Sampler
from opentelemetry.trace import Link, NonRecordingSpan, SpanContext, SpanKind, Status, StatusCode

from disttrace_viewer.load.ids import Context
from disttrace_viewer.otlp import attributes
from disttrace_viewer.otlp.journal import OK, JournalReader, LiveOperation
from disttrace_viewer.otlp.spans import Span

SCOPE = "disttrace"
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

    def __init__(self, processor: SpanProcessor) -> None:
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
        above = OtelContext()
        if (parent := span.parent) is not None:
            context = self._context(parent, remote=parent.sampled is not None)
            above = trace.set_span_in_context(NonRecordingSpan(context), above)
        made = tracer.start_span(
            span.name,
            context=above,
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

    def _context(self, context: Context, *, remote: bool) -> SpanContext:
        sampled = context.sampled
        if sampled is None:
            sampled = self._is_sampled(context.trace)
        flags = trace.TraceFlags(trace.TraceFlags.SAMPLED if sampled else 0)
        return SpanContext(int(context.trace, 16), int(context.span, 16), remote, flags)

    def _is_sampled(self, trace_id: str) -> bool:
        """What the sampler decides for the trace as a whole."""
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
            provider = TracerProvider(
                resource=Resource.create(resource(journal)),
                shutdown_on_exit=False,
                active_span_processor=self._processors,
                id_generator=self._ids,
            )
            self._sampler = self._sampler or provider.sampler
            found = self._tracers[key] = provider.get_tracer(SCOPE)
        return found


def resource(journal: JournalReader) -> attributes.Attributes:
    """The resource of a process; a service name only where the environment gives none."""
    found = attributes.process(journal.definitions)
    named = os.environ.get("OTEL_SERVICE_NAME") or "service.name=" in os.environ.get(
        "OTEL_RESOURCE_ATTRIBUTES", ""
    )
    if not named:
        found[SERVICE_NAME] = attributes.service_name(journal.definitions)
    return found


_SECONDS = (1e-5, 1e-4, 1e-3, 5e-3, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)


class Meters:
    """The instruments, fed by the pipeline."""

    def __init__(
        self,
        meter: Meter,
        in_flight: Callable[[], Iterable[tuple[LiveOperation, int]]],
    ) -> None:
        """``in_flight`` gives every operation in flight with its age in nanoseconds."""
        self._in_flight = in_flight
        self._count = meter.create_counter(
            "disttrace.operations", "{operation}", "Operations that ended."
        )
        self._io = meter.create_counter("disttrace.io", "By", "Bytes that operations were given.")
        self._duration = meter.create_histogram(
            "disttrace.operation.duration",
            "s",
            "From the begin of an operation to its end.",
            explicit_bucket_boundaries_advisory=_SECONDS,
        )
        self._wait = meter.create_histogram(
            "disttrace.operation.wait_time",
            "s",
            "The part of an operation that the program spent waiting.",
            explicit_bucket_boundaries_advisory=_SECONDS,
        )
        meter.create_observable_gauge(
            "disttrace.operation.in_flight.age",
            [lambda _: self._observed(lambda oldest_ns, _: oldest_ns / 1e9)],
            "s",
            "Age of the oldest operation in flight: what to alert on.",
        )
        meter.create_observable_gauge(
            "disttrace.operation.in_flight.count",
            [lambda _: self._observed(lambda _, count: count)],
            "{operation}",
            "Operations in flight.",
        )

    def ended(self, op: LiveOperation) -> None:
        """An operation is over, or its process is."""
        labels = _labels(op)
        self._count.add(1, {**labels, "disttrace.status": op.status})
        if op.bytes:
            self._io.add(op.bytes, labels)
        if op.end is None or op.unobserved:
            return
        self._duration.record(op.end / 1e9, labels)
        wait = op.record.get("wait")
        if wait is not None and op.status == OK:
            self._wait.record(max(0, op.end - wait) / 1e9, labels)

    def _observed(self, value: Callable[[int, int], float]) -> Iterable[Observation]:
        """``value`` of the oldest age (ns) and the count of operations in flight, by labels."""
        found: dict[tuple[tuple[str, Any], ...], tuple[int, int]] = {}
        for op, age in self._in_flight():
            labels = tuple(sorted(_labels(op).items()))
            oldest, count = found.get(labels, (0, 0))
            found[labels] = (max(oldest, age), count + 1)
        return [Observation(value(*known), dict(labels)) for labels, known in found.items()]


def _labels(op: LiveOperation) -> dict[str, str | int]:
    definitions = op.journal.definitions
    found: dict[str, str | int] = {"disttrace.op": str(op.call.get("op"))}
    number = op.call.get("group")
    if number is not None:
        found["disttrace.group.name"] = attributes.group_label(definitions, number)
    if op.call.get("backend"):
        found["disttrace.backend"] = str(op.call["backend"])
    if definitions.rank is not None:
        found["disttrace.rank"] = definitions.rank
    return found
