"""Sends spans in batches from a thread of its own: bounded, patient while it helps, and counted."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

QUEUE = 32768
"""Spans waiting at most (OTEL_BSP_MAX_QUEUE_SIZE): about 100 MB."""
BATCH = 512
DELAY_S = 1.0
"""A batch is sent when it is full or this old (OTEL_BSP_SCHEDULE_DELAY, in milliseconds)."""
TRIES = 3
GIVE_UP_S = 10.0
"""After the job: so long without a delivery, and the rest is given up (OTEL_BSP_EXPORT_TIMEOUT, in
milliseconds)."""
LONGEST_S = 300.0
"""After the job: so long at most, however slowly the collector takes spans."""


class Delivery(SpanProcessor):
    """The queue between the pipeline and a collector.

    A collector that works slowly makes the pipeline wait (the journals keep what is unread); one
    that does not work makes it drop. ``say`` gets sentences for people.
    """

    def __init__(self, exporter: SpanExporter, name: str, say: Callable[[str], None]) -> None:
        self.sent = 0
        self.dropped = 0
        self.last_error = ""
        self._exporter = exporter
        self._name = name
        self._say = say
        self._size = _setting("OTEL_BSP_MAX_QUEUE_SIZE", QUEUE)
        self._batch = min(_setting("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", BATCH), self._size)
        self._delay = _setting("OTEL_BSP_SCHEDULE_DELAY", int(DELAY_S * 1000)) / 1000
        self._patience = _setting("OTEL_BSP_EXPORT_TIMEOUT", int(GIVE_UP_S * 1000)) / 1000
        self._queue: deque[ReadableSpan] = deque()
        self._changed = threading.Condition()
        self._under_way = 0
        self._failing = False
        self._closing = False
        self._gave_up = False
        self._last_success = time.monotonic()
        self._said: set[str] = set()
        self._thread = threading.Thread(target=self._run, name="disttrace-otlp", daemon=True)
        self._thread.start()

    def on_end(self, span: ReadableSpan) -> None:
        """Queue a span; waits while the queue is full and the collector takes spans."""
        if span.context is None or not span.context.trace_flags.sampled:
            return
        with self._changed:
            while len(self._queue) >= self._size and not self._failing and not self._gave_up:
                self._changed.wait(1.0)
            if len(self._queue) >= self._size or self._gave_up:
                self._drop(1)
                return
            self._queue.append(span)
            if len(self._queue) >= self._batch:
                self._changed.notify_all()

    def finish(self) -> bool:
        """Deliver what is queued, within the bounds; True if nothing was lost since the start."""
        begin = self._last_success = time.monotonic()
        with self._changed:
            self._closing = True
            self._changed.notify_all()
            while self._queue or self._under_way:
                self._changed.wait(0.2)
                now = time.monotonic()
                if now - self._last_success > self._patience or now - begin > LONGEST_S:
                    break
            self._gave_up = True
            rest = len(self._queue) + self._under_way
            self._queue.clear()
            if rest:
                self._drop(rest)
            self._changed.notify_all()
        if self.dropped:
            self._say(self.verdict())
        return not self.dropped

    def verdict(self) -> str:
        """What was lost, and why."""
        total = self.dropped + self.sent
        return f"{self.dropped} of {total} spans did not reach {self._name}: {self._reason()}"

    def hopeless(self) -> bool:
        """Whether nothing was ever delivered, and a batch was given up."""
        return not self.sent and self.dropped > 0

    def error(self, text: str) -> None:
        """What the exporter said about a failure; the first one is told at once."""
        self.last_error = text
        self._once("failing", f"{self._name} does not take spans ({text}); trying on")

    # -- the sender --------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            batch = self._take()
            if not batch:
                return
            delivered = self._deliver(batch)
            with self._changed:
                if not self._gave_up:
                    if delivered:
                        self.sent += len(batch)
                    else:
                        self._drop(len(batch))
                self._under_way = 0
                self._changed.notify_all()

    def _take(self) -> list[ReadableSpan]:
        with self._changed:
            if len(self._queue) < self._batch and not self._closing:
                self._changed.wait(self._delay)
            while not self._queue:
                if self._closing:
                    return []
                self._changed.wait(self._delay)
            count = min(self._batch, len(self._queue))
            batch = [self._queue.popleft() for _ in range(count)]
            self._under_way = count
            self._changed.notify_all()
            return batch

    def _deliver(self, batch: Sequence[ReadableSpan]) -> bool:
        for attempt in range(TRIES):
            if self._gave_up:
                return False
            try:
                result = self._exporter.export(batch)
            except Exception as error:  # a span that cannot be encoded must not end the rest
                self.error(f"{type(error).__name__}: {error}")
                return False
            if result is SpanExportResult.SUCCESS:
                self._failing = False
                self._last_success = time.monotonic()
                return True
            self._failing = True
            self.error(self._reason())
            with self._changed:
                self._changed.notify_all()
                if attempt + 1 < TRIES and not self._gave_up:
                    self._changed.wait(1.0)
        return False

    def _drop(self, count: int) -> None:
        self.dropped += count
        self._once("dropping", f"spans are dropped, {self._name} did not take them in time")

    def _reason(self) -> str:
        return self.last_error or "no answer in time"

    def _once(self, kind: str, sentence: str) -> None:
        if kind not in self._said:
            self._said.add(kind)
            self._say(sentence)


def _setting(variable: str, default: int) -> int:
    try:
        value = int(os.environ.get(variable, ""))
    except ValueError:
        return default
    return value if value > 0 else default
