"""``disttrace export --format otlp``: journals of the past, with the ids they had live.

With ``-o`` as OTLP in JSON, one request per line; else to the collector of the ``OTEL_*``
variables.
"""

from __future__ import annotations

import base64
import os
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from disttrace.journal.format import DEFS_SUFFIX
from disttrace_viewer.analysis.process_ends import End
from disttrace_viewer.diagnosis.job import verdict_on
from disttrace_viewer.diagnosis.verdict import Verdict
from disttrace_viewer.findings.finding import RuleFinding
from disttrace_viewer.load.problems import ViewerError
from disttrace_viewer.otlp.pipeline import Pipeline
from disttrace_viewer.trace.model import JobTrace

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan

_BATCH = 512


def lines(trace: JobTrace) -> Iterator[bytes]:
    """OTLP requests as JSON, one per line."""
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    from disttrace_viewer.otlp.sdk import Tracers

    memory = InMemorySpanExporter()
    pipeline = Pipeline(Tracers(SimpleSpanProcessor(memory)).emit, pending_ns=_NEVER)
    for _ in _feed(pipeline, verdict_on(trace)):
        if len(found := memory.get_finished_spans()) >= _BATCH:
            memory.clear()
            yield _line(found)
    if found := memory.get_finished_spans():
        yield _line(found)


def send(verdict: Verdict) -> int:
    """Send the job that was judged to the environment's collector; the exit code. Raises
    ViewerError if spans are lost."""
    from disttrace_viewer.otlp.sdk import Tracers
    from disttrace_viewer.otlp.sending import to_collector

    # Nothing is printed meanwhile: the verdict at the end has it all.
    sender = to_collector(lambda _: None)
    if sender is None:
        raise ViewerError("OTEL_SDK_DISABLED or OTEL_TRACES_EXPORTER says that nothing is sent")
    pipeline = Pipeline(Tracers(sender).emit, pending_ns=_NEVER)
    for _ in _feed(pipeline, verdict):
        if sender.hopeless():
            break
    if not sender.finish():
        raise ViewerError(sender.verdict())
    sys.stderr.write(f"{sender.sent} spans sent to {sender.name}\n")
    return 0


_NEVER = 1 << 62


def _feed(pipeline: Pipeline, verdict: Verdict) -> Iterator[None]:
    """Journal by journal; control comes back after each, and every so many spans."""
    found: dict[str, tuple[End, list[RuleFinding]]] = {}
    processes, ends = verdict.case.trace.processes, verdict.case.evidence.ends
    for process, end in zip(processes, ends, strict=True):
        concerns = [
            finding
            for finding in verdict.findings
            if process.index in (*finding.culprits, *finding.waiting)
        ]
        for path in process.paths:
            if os.path.exists(path + DEFS_SUFFIX):
                directory, base = os.path.split(path)
                pipeline.follow(directory, base)
                found[base] = end, concerns
    for base in list(pipeline.journals):
        yield from pipeline.replay(base, *found.get(base, ()))
    pipeline.finish()
    yield


def _line(batch: Sequence[ReadableSpan]) -> bytes:
    """A request as https://opentelemetry.io/docs/specs/otlp/#json-protobuf-encoding has it: as
    protobuf's own JSON, but for ids, which are hexadecimal.
    """
    import orjson
    from google.protobuf.json_format import MessageToDict
    from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans

    request = MessageToDict(encode_spans(batch), use_integers_for_enums=True)
    for of in request["resourceSpans"]:
        for scope in of["scopeSpans"]:
            for span in scope["spans"]:
                for one in (span, *span.get("links", ())):
                    for key in ("traceId", "spanId", "parentSpanId"):
                        if key in one:
                            one[key] = base64.b64decode(one[key]).hex()
    return orjson.dumps(request) + b"\n"
