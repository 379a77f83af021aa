"""The queue to a collector: bounded, counted, and what is lost is said once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import pytest

pytest.importorskip("opentelemetry.sdk")

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from disttrace_viewer.otlp.send import delivery
from disttrace_viewer.otlp.send.delivery import Delivery
from support.processes import wait_until

NAME = "the collector at here"


class Scripted(SpanExporter):
    """Answers as told, and counts what came."""

    def __init__(self, answer: Callable[[], SpanExportResult]) -> None:
        self.answer = answer
        self.sizes: list[int] = []

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.sizes.append(len(spans))
        return self.answer()


def feed(target: Delivery, count: int) -> None:
    """So many spans."""
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(target)
    tracer = provider.get_tracer("test")
    for _ in range(count):
        tracer.start_span("span").end()


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten spans wait at most, five go at once, one try, and little patience at the end."""
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "10")
    monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "5")
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "10")
    monkeypatch.setattr(delivery, "TRIES", 1)
    monkeypatch.setattr(delivery, "GIVE_UP_S", 0.5)


@pytest.mark.usefixtures("quick")
def test_a_collector_that_works_gets_all_in_batches() -> None:
    """Nothing is said, nothing is lost."""
    said: list[str] = []
    exporter = Scripted(lambda: SpanExportResult.SUCCESS)
    target = Delivery(exporter, NAME, said.append)
    feed(target, 23)
    assert target.finish()
    assert (target.sent, target.dropped, said) == (23, 0, [])
    assert sum(exporter.sizes) == 23
    assert max(exporter.sizes) <= 5


@pytest.mark.usefixtures("quick")
def test_beyond_the_bound_spans_are_dropped_counted_and_said_once() -> None:
    """A collector that refuses, then sleeps: the caller goes on, and the sum is what it gave."""
    said: list[str] = []
    answers = threading.Event()
    answers.set()

    def refuse() -> SpanExportResult:
        answers.wait(10)
        return SpanExportResult.FAILURE

    target = Delivery(Scripted(refuse), NAME, said.append)
    feed(target, 5)
    wait_until(lambda: target.dropped == 5, 10)
    answers.clear()
    feed(target, 195)
    assert target.dropped >= 200 - 10 - 5
    answers.set()
    wait_until(lambda: target.dropped == 200, 10)
    assert not target.finish()
    assert (target.sent, target.dropped) == (0, 200)
    assert said.count(f"spans are dropped, {NAME} did not take them in time") == 1
    assert said[-1] == f"200 of 200 spans did not reach {NAME}: no answer in time"
    assert len(said) == len(set(said)) <= 3
    wait_until(lambda: "disttrace-otlp" not in [t.name for t in threading.enumerate()], 10)


@pytest.mark.usefixtures("quick")
def test_a_slow_collector_makes_the_caller_wait_instead() -> None:
    """Nothing is dropped while it takes spans at all."""
    said: list[str] = []
    pause = threading.Event()

    def slowly() -> SpanExportResult:
        pause.wait(0.05)
        return SpanExportResult.SUCCESS

    target = Delivery(Scripted(slowly), NAME, said.append)
    feed(target, 60)
    assert target.finish()
    assert (target.sent, target.dropped, said) == (60, 0, [])
