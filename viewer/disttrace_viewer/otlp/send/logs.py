"""A stall as a log record, on the trace of the job and on the span of the first who waits.

Sent from a thread of its own, as it happens: a job that stalls may be killed the next moment, and a
collector that takes no logs must not hold up the spans.
"""

from __future__ import annotations

import threading
import time

from opentelemetry._logs import LogRecord, SeverityNumber
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import SimpleLogRecordProcessor
from opentelemetry.sdk.resources import Resource
from opentelemetry.trace import TraceFlags

from disttrace_viewer.otlp.build.spans import Span
from disttrace_viewer.otlp.send.backends import exporter
from disttrace_viewer.otlp.send.log import LOGS_THREAD
from disttrace_viewer.otlp.send.tracers import SCOPE, resource

EVENT = "disttrace.stalled"
LAST_S = 5.0


class StallLogs:
    """The logger of the job's stalls; made with the first one."""

    def __init__(self, protocol: str) -> None:
        self._protocol = protocol
        self._thread: threading.Thread | None = None

    def tell(self, summary: str, text: str, span: Span) -> None:
        """Send the summary as the body and the whole report as an attribute."""
        record = LogRecord(
            timestamp=time.time_ns(),
            observed_timestamp=time.time_ns(),
            trace_id=int(span.context.trace, 16),
            span_id=int(span.context.span, 16),
            trace_flags=TraceFlags(TraceFlags.SAMPLED),
            severity_text="ERROR",
            severity_number=SeverityNumber.ERROR,
            body=summary,
            attributes={"disttrace.type": "stall", "disttrace.report": text[:30_000]},
            event_name=EVENT,
        )
        self.finish()
        found = Resource.create(resource(span.process))
        self._thread = threading.Thread(
            target=self._send, args=(record, found), name=LOGS_THREAD, daemon=True
        )
        self._thread.start()

    def finish(self) -> None:
        """Wait for the last one, for a while."""
        if self._thread is not None:
            self._thread.join(LAST_S)

    def _send(self, record: LogRecord, found: Resource) -> None:
        provider = LoggerProvider(found, shutdown_on_exit=False)
        logs = exporter("LOGS", self._protocol)
        provider.add_log_record_processor(SimpleLogRecordProcessor(logs))
        provider.get_logger(SCOPE).emit(record)
        provider.shutdown()
