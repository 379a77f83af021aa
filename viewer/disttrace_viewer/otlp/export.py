"""``disttrace export --format otlp``: journals of the past, with the ids they had live.

With ``-o`` as OTLP in JSON, one request per line (the file format of OpenTelemetry's collector);
without, to the collector that the ``OTEL_*`` variables name.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from disttrace.journal.format import DEFS_SUFFIX
from disttrace_viewer.analysis.process_ends import End
from disttrace_viewer.findings.finding import Finding
from disttrace_viewer.history.verdict import verdict_on
from disttrace_viewer.otlp.build.pipeline import Pipeline
from disttrace_viewer.trace.errors import ViewerError
from disttrace_viewer.trace.model import Trace

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan

_BATCH = 512


def lines(trace: Trace) -> Iterator[bytes]:
    """OTLP requests as JSON, one per line."""
    from disttrace_viewer.otlp.send import collect
    from disttrace_viewer.otlp.send.tracers import Tracers

    collector = collect.Collected()
    pipeline = Pipeline(Tracers(collector).emit, pending_ns=_NEVER)
    for _ in _feed(pipeline, trace):
        while len(collector.spans) >= _BATCH:
            yield _line(collector.take(_BATCH))
    while collector.spans:
        yield _line(collector.take(_BATCH))


def send(trace: Trace) -> int:
    """Send to the collector of the environment; the exit code.

    Raises:
        ViewerError: when spans did not get there.
    """
    import logging

    from disttrace_viewer.otlp.send.backends import exporter, target
    from disttrace_viewer.otlp.send.delivery import Delivery
    from disttrace_viewer.otlp.send.log import Errors
    from disttrace_viewer.otlp.send.tracers import Tracers

    where = target("TRACES")
    if where.protocol is None:
        raise ViewerError("OTEL_SDK_DISABLED or OTEL_TRACES_EXPORTER says that nothing is sent")
    spans = exporter("TRACES", where.protocol)
    # Nothing is said meanwhile: the verdict at the end says it all.
    delivery = Delivery(spans, f"the collector at {where.name}", lambda _: None)
    logger = logging.getLogger("opentelemetry")
    handler, propagate = Errors(delivery.error), logger.propagate
    logger.addHandler(handler)
    logger.propagate = False
    try:
        pipeline = Pipeline(Tracers(delivery).emit, pending_ns=_NEVER)
        for _ in _feed(pipeline, trace):
            if delivery.hopeless():
                break
        whole = delivery.finish()
    finally:
        logger.removeHandler(handler)
        logger.propagate = propagate
    if not whole:
        raise ViewerError(delivery.verdict())
    sys.stderr.write(f"{delivery.sent} spans sent to the collector at {where.name}\n")
    return 0


_NEVER = 1 << 62


def _feed(pipeline: Pipeline, trace: Trace) -> Iterator[None]:
    """Journal by journal; control comes back after each, and every so many spans."""
    found: dict[str, tuple[End, list[Finding]]] = {}
    verdict = verdict_on(trace)
    for process, end in zip(trace.processes, verdict.case.evidence.ends, strict=True):
        concerns = [
            finding
            for finding in verdict.findings
            if process.index in (*finding.culprits, *finding.waiting)
        ]
        for path in process.paths:
            if path.endswith(DEFS_SUFFIX):
                directory, name = os.path.split(path)
                base = name.removesuffix(DEFS_SUFFIX)
                pipeline.follow(directory, base)
                found[base] = end, concerns
    for base in list(pipeline.journals):
        yield from pipeline.replay(base, *found.get(base, ()))
    pipeline.finish()
    yield


def _line(batch: list[ReadableSpan]) -> bytes:
    import orjson

    from disttrace_viewer.otlp.send.request import request

    return orjson.dumps(request(batch)) + b"\n"
