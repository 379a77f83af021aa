"""The exporter's life: follow the journals of a job on this host, end soon after its processes."""

from __future__ import annotations

import logging
import os
import re
import time
from dataclasses import dataclass

from disttrace_viewer.otlp.backends import Target, metric_exporter, span_exporter, target
from disttrace_viewer.otlp.delivery import Delivery
from disttrace_viewer.otlp.pipeline import Pipeline
from disttrace_viewer.otlp.registry import Registry
from disttrace_viewer.otlp.spans import Emit

POLL_S = 0.25
LINGER_S = 1.0
"""A job whose last process went may go on with the next one (a restart, a shell loop)."""
METRICS_S = 5.0
"""What the last metrics may take at the end."""


@dataclass(frozen=True, slots=True)
class Order:
    """What the first traced process asked for."""

    directory: str
    pending_s: float
    keep: bool
    """Keep the journals (json) instead of deleting what was delivered or given up."""


class Log:
    """Sentences for people, each once, in a file that is removed where it stayed empty."""

    def __init__(self, descriptor: int) -> None:
        self._fd = descriptor
        self._said: set[str] = set()

    def say(self, sentence: str) -> None:
        """Append a sentence; a full disk is no reason to stop."""
        if sentence not in self._said:
            self._said.add(sentence)
            try:
                os.write(self._fd, f"{sentence}\n".encode("utf-8", "replace"))
            except OSError:
                pass


class Errors(logging.Handler):
    """What OpenTelemetry's exporters say about a delivery."""

    def __init__(self, delivery: Delivery) -> None:
        super().__init__(logging.WARNING)
        self._delivery = delivery

    def emit(self, record: logging.LogRecord) -> None:
        self._delivery.error(_short(record.getMessage()))


def _short(message: str) -> str:
    """gRPC's status and details out of a long sentence; else its first line."""
    code = re.search(r"StatusCode\.(\w+)", message)
    details = re.search(r"[Ee]rror details: (.*)", message)
    if code is None:
        return message.splitlines()[0][:200]
    return f"{code[1]}: {details[1][:160]}" if details is not None else code[1]


class Service:
    """Everything between the registry and the collector."""

    def __init__(self, order: Order, registry: Registry, log: Log) -> None:
        """Raises ViewerError for settings that cannot be followed."""
        from disttrace_viewer.otlp.tracers import Tracers

        self._order = order
        self._registry = registry
        self._log = log
        where = target("TRACES")
        self._delivery: Delivery | None = None
        emit: Emit = _discard
        if where.protocol is not None:
            name = f"the collector at {where.name}"
            self._delivery = Delivery(span_exporter(where.protocol), name, log.say)
            logger = logging.getLogger("opentelemetry")
            logger.addHandler(Errors(self._delivery))
            logger.propagate = False
            emit = Tracers(self._delivery).emit
        self.pipeline = Pipeline(emit, None, pending_ns=int(order.pending_s * 1e9))
        self._metrics = _Metrics(target("METRICS"), self.pipeline, self._delivery)

    def run(self) -> None:
        """Until the last process of the job is gone and what it left was delivered or given up."""
        last_alive = time.monotonic()
        while True:
            for entry in self._registry.poll():
                self.pipeline.follow(self._order.directory, entry.base)
            gone = [e for e in self._registry.entries if not e.alive()]
            self.pipeline.poll()
            for entry in gone:
                self.pipeline.ended(entry.base)
            if len(gone) < len(self._registry.entries):
                last_alive = time.monotonic()
            elif time.monotonic() - last_alive > LINGER_S and self._registry.release():
                break
            self._metrics.named()
            time.sleep(POLL_S)
        self.pipeline.finish()
        self._finish()

    def _finish(self) -> None:
        self._warn_of_unread()
        self._metrics.begin_shutdown()
        if self._delivery is not None:
            self._delivery.finish()
        self._metrics.wait()
        if not self._order.keep:
            for journal in self.pipeline.journals.values():
                journal.delete()

    def _warn_of_unread(self) -> None:
        unread = sum(journal.unread for journal in self.pipeline.journals.values())
        if unread:
            self._log.say(
                f"{unread} segments of journals were dropped before they were sent; "
                "DISTTRACE_MAX_MB keeps more"
            )


class _Metrics:
    """The meter provider, made when the first process is known: its resource is the job's."""

    def __init__(self, where: Target, pipeline: Pipeline, delivery: Delivery | None) -> None:
        self._where = where
        self._pipeline = pipeline
        self._delivery = delivery
        self._provider: object | None = None
        self._thread: object | None = None

    def named(self) -> None:
        """Start sending as soon as there is a process."""
        if self._provider is not None or self._where.protocol is None:
            return
        first = next((j for j in self._pipeline.journals.values() if j.definitions.process), None)
        if first is None:
            return
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
        from opentelemetry.sdk.resources import Resource

        from disttrace_viewer.otlp.metrics import Meters
        from disttrace_viewer.otlp.tracers import SCOPE, resource

        found = resource(first)
        shared = {k: v for k, v in found.items() if k in _OF_THE_JOB}
        reader = PeriodicExportingMetricReader(metric_exporter(self._where.protocol))
        provider = MeterProvider([reader], Resource.create(shared), shutdown_on_exit=False)
        meter = provider.get_meter(SCOPE)
        self._pipeline.use(Meters(meter, self._pipeline.in_flight))
        if self._delivery is not None:
            delivery = self._delivery
            meter.create_observable_counter(
                "disttrace.export.dropped",
                [lambda options: _observed(delivery.dropped)],
                "{span}",
                "Spans that did not reach the collector.",
            )
        self._provider = provider

    def begin_shutdown(self) -> None:
        """Send the last values, beside the last spans."""
        import threading

        self.named()
        shutdown = getattr(self._provider, "shutdown", None)
        if shutdown is not None:
            self._thread = threading.Thread(target=shutdown, daemon=True)
            self._thread.start()

    def wait(self) -> None:
        """For the last values, a bounded time."""
        join = getattr(self._thread, "join", None)
        if join is not None:
            join(METRICS_S)


_OF_THE_JOB = (
    "host.name",
    "service.name",
    "disttrace.job",
    "disttrace.run",
    "disttrace.world_size",
)


def _observed(value: int) -> list[object]:
    from opentelemetry.metrics import Observation

    return [Observation(value)]


def _discard(span: object) -> None:
    """Where spans go when nobody wants them."""
