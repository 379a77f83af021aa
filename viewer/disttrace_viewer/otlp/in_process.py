"""Feeds the journal of this process to a ``TracerProvider`` that the program made itself.

A thread reads what the recorder wrote; gRPC comes in only where the program's own exporter brings
it. The exporter process needs none of this.
"""

from __future__ import annotations

import atexit
import os
import threading

from opentelemetry.metrics import MeterProvider, get_meter
from opentelemetry.sdk.trace import TracerProvider

from disttrace_viewer.otlp.build.metrics import Meters
from disttrace_viewer.otlp.build.pipeline import Pipeline
from disttrace_viewer.otlp.send.tracers import SCOPE, Tracers

POLL_S = 0.25


class Feed:
    """From this process's journal to ``provider``, with its resource, sampler and processors.

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
        while not self._ended.wait(POLL_S):
            self._pipeline.poll()
