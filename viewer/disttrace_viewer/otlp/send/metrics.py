"""Sends metrics: a meter provider of OpenTelemetry's, with the resource of the job on this host."""

from __future__ import annotations

import threading

from opentelemetry.metrics import Observation
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource

from disttrace_viewer.otlp.build.metrics import Meters
from disttrace_viewer.otlp.build.pipeline import Pipeline
from disttrace_viewer.otlp.send.backends import Target, exporter
from disttrace_viewer.otlp.send.delivery import Delivery
from disttrace_viewer.otlp.send.tracers import SCOPE, resource

LAST_S = 5.0
"""What the last metrics may take at the end."""


class SentMetrics:
    """The meter provider, made when the first process is known: its resource is the job's."""

    def __init__(self, where: Target, pipeline: Pipeline, delivery: Delivery | None) -> None:
        self._where = where
        self._pipeline = pipeline
        self._delivery = delivery
        self._provider: MeterProvider | None = None
        self._thread: threading.Thread | None = None

    def named(self) -> None:
        """Start sending as soon as there is a process."""
        if self._provider is not None or self._where.protocol is None:
            return
        first = next((j for j in self._pipeline.journals.values() if j.definitions.process), None)
        if first is None:
            return
        found = resource(first)
        shared = {k: v for k, v in found.items() if k in _OF_THE_JOB}
        reader = PeriodicExportingMetricReader(exporter("METRICS", self._where.protocol))
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
        self.named()
        if self._provider is not None:
            self._thread = threading.Thread(target=self._provider.shutdown, daemon=True)
            self._thread.start()

    def wait(self) -> None:
        """For the last values, a bounded time."""
        if self._thread is not None:
            self._thread.join(LAST_S)


_OF_THE_JOB = (
    "host.name",
    "service.name",
    "disttrace.job",
    "disttrace.run",
    "disttrace.world_size",
)


def _observed(value: int) -> list[Observation]:
    return [Observation(value)]
