"""Metrics: how many operations, how long, how long waited, how much, how fast, how old."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from opentelemetry.metrics import CallbackOptions, Meter, Observation

from disttrace_viewer.otlp import attributes
from disttrace_viewer.otlp.journal import OK, JournalReader, Operation
from disttrace_viewer.trace.bandwidth import BUS

_SECONDS = (1e-5, 1e-4, 1e-3, 5e-3, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)
_RATES = tuple(scale * 10.0**power for power in range(5, 12) for scale in (1.0, 2.0, 5.0))


class Meters:
    """The instruments, fed by the pipeline."""

    def __init__(
        self, meter: Meter, in_flight: Callable[[], Iterable[tuple[JournalReader, Operation, int]]]
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
        self._bus = meter.create_histogram(
            "disttrace.bus.bandwidth",
            "By/s",
            "Bus bandwidth of collectives as NCCL's tests define it, from the last arrival on.",
            explicit_bucket_boundaries_advisory=_RATES,
        )
        meter.create_observable_gauge(
            "disttrace.operation.in_flight.age",
            [self._ages],
            "s",
            "Age of the oldest operation in flight: what to alert on.",
        )
        meter.create_observable_gauge(
            "disttrace.operation.in_flight.count",
            [self._counts],
            "{operation}",
            "Operations in flight.",
        )

    def ended(self, journal: JournalReader, op: Operation) -> None:
        """An operation is over, or its process is."""
        labels = _labels(journal, op)
        self._count.add(1, {**labels, "disttrace.status": op.status})
        if op.bytes:
            self._io.add(op.bytes, labels)
        if op.end is None or op.unobserved:
            return
        self._duration.record(op.end / 1e9, labels)
        wait = op.record.get("wait")
        if wait is not None and op.status == OK:
            self._wait.record(max(0, op.end - wait) / 1e9, labels)

    def exchanged(
        self, journal: JournalReader, op: Operation, duration_ns: int, *, clock: str
    ) -> None:
        """All members of a collective are through, ``duration_ns`` after the last one arrived.

        ``clock``: ``device`` where the backend measured it, else ``host``.
        """
        shape = BUS.get(str(op.call.get("op")))
        group = journal.definitions.get("group", op.call.get("group")) or {}
        size = group.get("size")
        if shape is None or not op.bytes or not isinstance(size, int) or size < 2:
            return
        total, factor = shape(op.bytes, size, op.call.get("root") == group.get("rank"))
        labels = _labels(journal, op)
        labels.pop("disttrace.rank", None)
        labels["disttrace.clock"] = clock
        self._bus.record(total / (duration_ns / 1e9) * factor, labels)

    def _ages(self, options: CallbackOptions) -> Iterable[Observation]:
        return [Observation(age / 1e9, dict(labels)) for labels, (age, _) in self._grouped()]

    def _counts(self, options: CallbackOptions) -> Iterable[Observation]:
        return [Observation(count, dict(labels)) for labels, (_, count) in self._grouped()]

    def _grouped(self) -> Iterable[tuple[tuple[tuple[str, Any], ...], tuple[int, int]]]:
        found: dict[tuple[tuple[str, Any], ...], tuple[int, int]] = {}
        for journal, op, age in self._in_flight():
            labels = tuple(sorted(_labels(journal, op).items()))
            oldest, count = found.get(labels, (0, 0))
            found[labels] = (max(oldest, age), count + 1)
        return found.items()


def _labels(journal: JournalReader, op: Operation) -> dict[str, str | int]:
    found: dict[str, str | int] = {"disttrace.op": str(op.call.get("op"))}
    number = op.call.get("group")
    if number is not None:
        found["disttrace.group.name"] = attributes.group_label(journal.definitions, number)
    if op.call.get("backend"):
        found["disttrace.backend"] = str(op.call["backend"])
    if journal.definitions.rank is not None:
        found["disttrace.rank"] = journal.definitions.rank
    return found
