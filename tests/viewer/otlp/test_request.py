"""Requests in JSON are those that the SDK's protobuf messages would give."""

from __future__ import annotations

import base64
from typing import Any

import orjson
import pytest
from google.protobuf.json_format import MessageToDict
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    TraceState,
    set_span_in_context,
)

from disttrace_viewer.otlp.send.collect import Collected
from disttrace_viewer.otlp.send.request import request

VALUES: dict[str, Any] = {
    "text": 'umlaut "ä"',
    "empty": "",
    "yes": True,
    "no": False,
    "zero": 0,
    "large": (1 << 63) - 1,
    "negative": -5,
    "half": 0.5,
    "whole": 2.0,
    "nothing": float("nan"),
    "endless": float("-inf"),
    "words": ("a", "b"),
    "numbers": (1, 2, 0),
    "none": (),
}


def spans() -> list[Any]:
    """One of each kind, of two resources, with whatever a span can bear."""
    collected = Collected()
    for name, schema in (("one", None), ("two", "https://opentelemetry.io/schemas/1.0.0")):
        provider = TracerProvider(
            resource=Resource({"service.name": name, "pid": 7}, schema), shutdown_on_exit=False
        )
        provider.add_span_processor(collected)
        tracer = provider.get_tracer("scope", "1.0" if schema else None)
        for remote in (False, True):
            state = TraceState([("vendor", "x"), ("other", "y")]) if remote else None
            flags = TraceFlags(TraceFlags.SAMPLED)
            above = SpanContext(1 << 90, 1 << 40, remote, flags, state)
            for kind in SpanKind:
                span = tracer.start_span(
                    kind.name if remote else "",
                    context=set_span_in_context(NonRecordingSpan(above)),
                    kind=kind,
                    attributes=VALUES if remote else None,
                    links=[Link(above, {"which": 1}), Link(above)] if remote else (),
                    start_time=5,
                )
                if remote:
                    span.add_event("happened", {"at": "x"}, timestamp=1 << 60)
                    span.add_event("bare", timestamp=0)
                    span.set_status(Status(StatusCode.ERROR, "why"))
                span.end(end_time=1 << 60)
        tracer.start_span("root", start_time=1).end(end_time=2)
    return list(collected.spans)


def hexadecimal(value: Any) -> Any:
    """OTLP's JSON has ids in hexadecimal, where protobuf's has base64."""
    if isinstance(value, list):
        return [hexadecimal(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        key: base64.b64decode(item).hex()
        if key.endswith(("raceId", "panId"))
        else hexadecimal(item)
        for key, item in value.items()
    }


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_request_is_that_of_the_sdks_messages() -> None:
    """Byte by byte, with every kind of span, value, link and event."""
    found = spans()
    assert len(found) == 22
    theirs = hexadecimal(MessageToDict(encode_spans(found), use_integers_for_enums=True))
    assert orjson.dumps(request(found)) == orjson.dumps(theirs)
