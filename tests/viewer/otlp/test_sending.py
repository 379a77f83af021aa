"""The queue to a collector: bounded, counted, and what is lost is said once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import pytest

pytest.importorskip("opentelemetry.sdk")

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from disttrace_viewer.load.problems import ViewerError
from disttrace_viewer.otlp import sending
from disttrace_viewer.otlp.sending import Sender
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


def feed(target: Sender, count: int) -> None:
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
    monkeypatch.setattr(sending, "TRIES", 1)
    monkeypatch.setenv("OTEL_BSP_EXPORT_TIMEOUT", "500")


@pytest.mark.usefixtures("quick")
def test_a_collector_that_works_gets_all_in_batches() -> None:
    """Nothing is said, nothing is lost."""
    said: list[str] = []
    exporter = Scripted(lambda: SpanExportResult.SUCCESS)
    target = Sender(lambda: exporter, NAME, said.append)
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

    before = threading.active_count()
    target = Sender(lambda: Scripted(refuse), NAME, said.append)
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
    wait_until(lambda: threading.active_count() <= before, 10)


@pytest.mark.usefixtures("quick")
def test_a_slow_collector_makes_the_caller_wait_instead() -> None:
    """Nothing is dropped while it takes spans at all."""
    said: list[str] = []
    pause = threading.Event()

    def slowly() -> SpanExportResult:
        pause.wait(0.05)
        return SpanExportResult.SUCCESS

    target = Sender(lambda: Scripted(slowly), NAME, said.append)
    feed(target, 60)
    assert target.finish()
    assert (target.sent, target.dropped, said) == (60, 0, [])


@pytest.mark.usefixtures("quick")
def test_what_failed_once_is_sent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A collector that is back within the tries loses nothing, and the first failure is said."""
    monkeypatch.setattr(sending, "TRIES", 3)
    monkeypatch.setenv("OTEL_BSP_EXPORT_TIMEOUT", "10000")
    said: list[str] = []
    answers = iter([SpanExportResult.FAILURE] * 2)
    exporter = Scripted(lambda: next(answers, SpanExportResult.SUCCESS))
    target = Sender(lambda: exporter, NAME, said.append)
    feed(target, 5)
    wait_until(lambda: target.sent == 5, 20)
    assert target.finish()
    assert (exporter.sizes, target.dropped) == ([5, 5, 5], 0)
    assert said == [f"{NAME} does not take spans (no answer in time); trying on"]


def test_settings_that_the_sdk_refuses_are_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    """OpenTelemetry's variables are read by the SDK."""
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "10")
    monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "20")
    with pytest.raises(ViewerError, match=r"OTEL_BSP_\*: max_export_batch_size"):
        Sender(lambda: Scripted(lambda: SpanExportResult.SUCCESS), NAME, lambda _: None)
