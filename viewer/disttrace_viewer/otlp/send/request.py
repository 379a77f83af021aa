"""Spans of the SDK as a request of OTLP in JSON: the file format of OpenTelemetry's collector.

The SDK's own way there, by protobuf's messages, takes three times as long. Names, ids in
hexadecimal, 64-bit numbers as texts and what is left out where it is nothing are those of
https://opentelemetry.io/docs/specs/otlp/#json-protobuf-encoding; a test compares the two.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope
    from opentelemetry.trace import SpanContext

Json = dict[str, Any]
_HAS_IS_REMOTE, _IS_REMOTE = 0x100, 0x200
"""Flags of a context: whether it says that its parent is of another process, and that it is."""


def request(spans: Iterable[ReadableSpan]) -> Json:
    """The request that carries spans, by resource and scope."""
    sorted_in: dict[Resource, dict[InstrumentationScope | None, list[Json]]] = {}
    for span in spans:
        scopes = sorted_in.setdefault(span.resource, {})
        scopes.setdefault(span.instrumentation_scope, []).append(_span(span))
    return {
        "resourceSpans": [
            {
                "resource": _with_attributes(resource.attributes),
                "scopeSpans": [
                    {"scope": _scope(scope), "spans": found}
                    | _without_nothing(schemaUrl=scope and scope.schema_url)
                    for scope, found in scopes.items()
                ],
            }
            | _without_nothing(schemaUrl=resource.schema_url)
            for resource, scopes in sorted_in.items()
        ]
    }


def _span(span: ReadableSpan) -> Json:
    context = span.get_span_context()
    found = _ids(context)
    if context is not None and context.trace_state:
        found["traceState"] = context.trace_state.to_header()
    if span.parent is not None:
        found["parentSpanId"] = f"{span.parent.span_id:016x}"
    found |= _without_nothing(
        name=span.name,
        kind=span.kind.value + 1,
        startTimeUnixNano=_time(span.start_time),
        endTimeUnixNano=_time(span.end_time),
    )
    found |= _with_attributes(span.attributes)
    if span.events:
        found["events"] = [
            _without_nothing(timeUnixNano=_time(event.timestamp), name=event.name)
            | _with_attributes(event.attributes)
            | _without_nothing(droppedAttributesCount=event.dropped_attributes)
            for event in span.events
        ]
    if span.links:
        found["links"] = [
            _ids(link.context)
            | _with_attributes(link.attributes)
            | _without_nothing(droppedAttributesCount=link.dropped_attributes)
            | {"flags": _flags(link.context)}
            for link in span.links
        ]
    status = span.status
    found["status"] = _without_nothing(message=status.description, code=status.status_code.value)
    found |= _without_nothing(
        droppedAttributesCount=span.dropped_attributes,
        droppedEventsCount=span.dropped_events,
        droppedLinksCount=span.dropped_links,
    )
    found["flags"] = _flags(span.parent)
    return found


def _ids(context: SpanContext | None) -> Json:
    if context is None:
        return {}
    return {"traceId": f"{context.trace_id:032x}", "spanId": f"{context.span_id:016x}"}


def _time(ns: int | None) -> str:
    return str(ns) if ns else ""


def _flags(context: SpanContext | None) -> int:
    remote = context is not None and context.is_remote
    return _HAS_IS_REMOTE | (_IS_REMOTE if remote else 0)


def _scope(scope: InstrumentationScope | None) -> Json:
    if scope is None:
        return {}
    named = _without_nothing(name=scope.name, version=scope.version)
    return named | _with_attributes(scope.attributes)


def _with_attributes(attributes: Mapping[str, Any] | None) -> Json:
    if not attributes:
        return {}
    return {"attributes": [{"key": key, "value": _value(v)} for key, v in attributes.items()]}


def _value(value: object) -> Json:
    kind = type(value)
    if kind is str:
        return {"stringValue": value}
    if kind is bool:
        return {"boolValue": value}
    if kind is int:
        return {"intValue": str(value)}
    if isinstance(value, float):
        return {"doubleValue": value if math.isfinite(value) else _NOT_FINITE[str(value)]}
    if isinstance(value, bytes):
        return {"bytesValue": base64.b64encode(value).decode()}
    if isinstance(value, Mapping):
        return {
            "kvlistValue": {"values": [{"key": k, "value": _value(v)} for k, v in value.items()]}
        }
    if isinstance(value, Sequence):
        return {"arrayValue": _without_nothing(values=[_value(v) for v in value])}
    return {}


_NOT_FINITE = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}


def _without_nothing(**fields: object) -> Json:
    return {name: value for name, value in fields.items() if value}
