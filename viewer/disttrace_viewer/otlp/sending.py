"""Sends spans and metrics by OpenTelemetry's own processors, and counts what was lost."""

from __future__ import annotations

import logging
import os
import re
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

from disttrace_viewer.load.problems import ViewerError
from disttrace_viewer.otlp.pipeline import Pipeline
from disttrace_viewer.otlp.sdk import SCOPE, Meters, resource
from disttrace_viewer.otlp.target import exporter, target, without_secrets
from disttrace_viewer.trace.plain_text import whole

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics import MeterProvider

QUEUE = 32768
"""Spans waiting at most (OTEL_BSP_MAX_QUEUE_SIZE): about 100 MB."""
DELAY_MS = 1000
"""A batch is sent when it is full or this old (OTEL_BSP_SCHEDULE_DELAY)."""
GIVE_UP_MS = 10_000
"""After the job: so long without a delivery, and the rest is given up (OTEL_BSP_EXPORT_TIMEOUT)."""
LONGEST_S = 300.0
"""After the job: so long at most, however slowly the collector takes spans."""
LAST_S = 5.0
"""What the last metrics may take at the end."""


class Sender(SpanProcessor, SpanExporter):
    """Before and behind OpenTelemetry's ``BatchSpanProcessor``: counts what comes and what is sent.

    A collector that works slowly makes the caller wait (the journals keep what is unread), one that
    does not work makes it drop: the SDK's queue is never full. ``say`` gets sentences for people.
    """

    def __init__(
        self, make: Callable[[], SpanExporter], name: str, say: Callable[[str], None]
    ) -> None:
        """``make`` gives the exporter. Raises ViewerError for settings that the SDK refuses."""
        self.sent = 0
        self.name, self._say = name, say
        self._reason = "no answer in time"
        size = _setting("OTEL_BSP_MAX_QUEUE_SIZE", QUEUE)
        self._patience = _setting("OTEL_BSP_EXPORT_TIMEOUT", GIVE_UP_MS) / 1000
        self._room = threading.Semaphore(size)
        # Each is counted by one thread.
        self._queued = self._refused = self._failed = 0
        self._last_success = 0.0
        self._failing = False
        self._said: set[str] = set()
        self._worker: int | None = None
        self._handler = _LogHandler(self._receive)
        try:
            delay = _setting("OTEL_BSP_SCHEDULE_DELAY", DELAY_MS)
            self._exporter = make()
            self._batches = BatchSpanProcessor(self, size, delay)
        except ValueError as error:
            self._handler.close()
            raise ViewerError(f"OTEL_BSP_*: {error}") from None
        self._worker = 0

    @property
    def dropped(self) -> int:
        """Spans that did not, or will not, reach the collector."""
        return self._refused + self._failed

    @property
    def _waiting(self) -> int:
        return self._queued - self.sent - self._failed

    def on_end(self, span: ReadableSpan) -> None:
        """Queue a span; waits while the queue is full and the collector takes spans."""
        if span.context is None or not span.context.trace_flags.sampled:
            return
        if not self._room.acquire(blocking=not self._failing):
            self._refused += 1
            self._drops()
            return
        self._queued += 1
        self._batches.on_end(span)

    def finish(self) -> bool:
        """Deliver what is queued, within the bounds; True if nothing was lost since the start."""
        begin = self._last_success = time.monotonic()
        threading.Thread(target=self._end, daemon=True).start()
        while self._waiting:
            time.sleep(0.02)
            now = time.monotonic()
            if now - self._last_success > self._patience or now - begin > LONGEST_S:
                self._refused += self._waiting
                break
        self._handler.close()
        if self.dropped:
            self._say(self.verdict())
        return not self.dropped

    def verdict(self) -> str:
        """What was lost, and why."""
        total = self.dropped + self.sent
        return f"{self.dropped} of {total} spans did not reach {self.name}: {self._reason}"

    def hopeless(self) -> bool:
        """Whether nothing was ever delivered, and a batch was given up."""
        return not self.sent and self.dropped > 0

    def _end(self) -> None:
        self._batches.force_flush()
        self._batches.shutdown()

    def shutdown(self) -> None:
        self._exporter.shutdown()

    def export(self, batch: Sequence[ReadableSpan]) -> SpanExportResult:
        """On the SDK's thread; the exporter itself repeats what may help."""
        self._worker = threading.get_ident()
        try:
            found = self._exporter.export(batch)
        except Exception as error:  # a span that cannot be encoded must not end the rest
            found = SpanExportResult.FAILURE
            self._reason = f"{type(error).__name__}: {error}"
        self._failing = found is not SpanExportResult.SUCCESS
        if self._failing:
            self._fails(self._reason)
            self._failed += len(batch)
            self._drops()
        else:
            self._last_success = time.monotonic()
            self.sent += len(batch)
        self._room.release(len(batch))
        return found

    def _receive(self, record: logging.LogRecord) -> None:
        """What the exporter of spans logs; that of another signal is not about spans."""
        text = without_secrets(_short(record.getMessage()))
        if self._worker is None:
            self._say(text)  # of the environment
        elif record.thread == self._worker:
            self._fails(text)

    def _fails(self, reason: str) -> None:
        self._reason = reason
        self._once("failing", f"{self.name} does not take spans ({reason}); trying on")

    def _drops(self) -> None:
        self._once("dropping", f"spans are dropped, {self.name} did not take them in time")

    def _once(self, kind: str, sentence: str) -> None:
        if kind not in self._said:
            self._said.add(kind)
            self._say(sentence)


def to_collector(say: Callable[[str], None]) -> Sender | None:
    """What sends to the environment's collector, or None. Raises ViewerError for bad settings."""
    found = target("TRACES")
    if found is None:
        return None
    protocol, address = found
    return Sender(lambda: exporter("TRACES", protocol), f"the collector at {address}", say)


class _LogHandler(logging.Handler):
    """Takes what OpenTelemetry logs, from its making to its close."""

    def __init__(self, hear: Callable[[logging.LogRecord], None]) -> None:
        super().__init__(logging.WARNING)
        self._receive = hear
        self._logger = logging.getLogger("opentelemetry")
        self._propagated = self._logger.propagate
        self._logger.propagate = False
        self._logger.addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        self._receive(record)

    def close(self) -> None:
        self._logger.removeHandler(self)
        self._logger.propagate = self._propagated
        super().close()


class Metrics:
    """Sends metrics, from when the first process is known: their resource is the job's."""

    def __init__(self, pipeline: Pipeline, sender: Sender | None) -> None:
        """Raises ViewerError for settings that cannot be followed."""
        self._target = target("METRICS")
        self._pipeline = pipeline
        self._sender = sender
        self._provider: MeterProvider | None = None

    def begin(self) -> None:
        """Start sending as soon as there is a process."""
        known = (j for j in self._pipeline.journals.values() if j.definitions.process)
        first = None if self._provider is not None else next(known, None)
        if first is None or self._target is None:
            return
        from opentelemetry.metrics import Observation
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader

        shared = {k: v for k, v in resource(first).items() if k in _OF_THE_JOB}
        reader = PeriodicExportingMetricReader(exporter("METRICS", self._target[0]))
        self._provider = MeterProvider([reader], Resource.create(shared), shutdown_on_exit=False)
        meter = self._provider.get_meter(SCOPE)
        self._pipeline.use(Meters(meter, self._pipeline.in_flight))
        if (sender := self._sender) is not None:
            meter.create_observable_counter(
                "disttrace.export.dropped",
                [lambda _: [Observation(sender.dropped)]],
                "{span}",
                "Spans that did not reach the collector.",
            )

    def finish(self) -> threading.Thread:
        """Send the last values, on a thread."""
        self.begin()
        end = self._provider.shutdown if self._provider is not None else lambda: None
        thread = threading.Thread(target=end, daemon=True)
        thread.start()
        return thread


_OF_THE_JOB = (
    "host.name",
    "service.name",
    "disttrace.job",
    "disttrace.run",
    "disttrace.world_size",
)


def _short(message: str) -> str:
    """gRPC's status and details out of a long sentence; else its first line."""
    code = re.search(r"StatusCode\.(\w+)", message)
    details = re.search(r"[Ee]rror details: (.*)", message)
    if code is None:
        return message.splitlines()[0][:200]
    return f"{code[1]}: {details[1][:160]}" if details is not None else code[1]


def _setting(variable: str, default: int) -> int:
    return whole(os.environ.get(variable, "").strip()) or default
