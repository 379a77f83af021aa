"""A span processor that keeps what it gets."""

from __future__ import annotations

from collections import deque

from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor


class Collected(SpanProcessor):
    """Spans that the sampler lets through, in the order in which they came."""

    def __init__(self) -> None:
        self.spans: deque[ReadableSpan] = deque()

    def on_end(self, span: ReadableSpan) -> None:
        if span.context is not None and span.context.trace_flags.sampled:
            self.spans.append(span)

    def take(self, count: int) -> list[ReadableSpan]:
        """The first ``count``."""
        return [self.spans.popleft() for _ in range(min(count, len(self.spans)))]
