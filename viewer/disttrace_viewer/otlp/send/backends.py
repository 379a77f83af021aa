"""Which exporter the environment asks for, and how to call its collector in a sentence."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from disttrace_viewer.trace.errors import ViewerError

_DEFAULTS = {"grpc": "http://localhost:4317", "http/protobuf": "http://localhost:4318"}


_SHORTEST = 4  # of a header's value: less would mask words


@dataclass(frozen=True, slots=True)
class Target:
    """Where a signal (``TRACES``, ``METRICS``, ``LOGS``) goes; ``protocol`` None: nowhere."""

    protocol: str | None
    name: str


def target(signal: str) -> Target:
    """The target of a signal by OpenTelemetry's variables.

    Raises:
        ViewerError: for an exporter or a protocol that this is not made for.
    """
    wanted = os.environ.get(f"OTEL_{signal}_EXPORTER", "otlp").strip().lower() or "otlp"
    if os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true" or wanted == "none":
        return Target(None, "nobody")
    if "otlp" not in wanted.split(","):
        raise ViewerError(f"OTEL_{signal}_EXPORTER is {wanted!r}; disttrace sends otlp or none")
    protocol = _variable(signal, "PROTOCOL") or "grpc"
    if protocol not in _DEFAULTS:
        raise ViewerError(
            f"the OTLP protocol is {protocol!r}; disttrace sends {' or '.join(_DEFAULTS)}"
        )
    return Target(protocol, without_secrets(_variable(signal, "ENDPOINT") or _DEFAULTS[protocol]))


def without_secrets(text: str) -> str:
    """``text`` without what the environment tells the exporter alone.

    That is users and passwords in addresses, and the headers, which OpenTelemetry quotes where it
    cannot read them.
    """
    for value in _secrets(os.environ):
        text = text.replace(value, "***")
    return re.sub(r"(://)[^\s/?#\"'<>]+@", r"\1***@", text)


def _secrets(environ: Mapping[str, str]) -> list[str]:
    """Header values as they are written and as they are sent, longest first."""
    found = set()
    for name, headers in environ.items():
        if name.startswith("OTEL_EXPORTER_OTLP_") and name.endswith("HEADERS"):
            for header in headers.split(","):
                value = header.partition("=")[2].strip() or header.strip()
                found |= {value, unquote(value), unquote(value).partition(" ")[2]}
    return sorted((value for value in found if len(value) >= _SHORTEST), key=len, reverse=True)


def span_exporter(protocol: str) -> Any:
    """The SDK's exporter, which reads the rest of the variables itself."""
    if protocol == "grpc":
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter

        return OTLPSpanExporter()
    _certificate_wins("TRACES")
    from opentelemetry.exporter.otlp.proto.http import trace_exporter

    return trace_exporter.OTLPSpanExporter()


def metric_exporter(protocol: str) -> Any:
    """The SDK's exporter of metrics."""
    if protocol == "grpc":
        from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter

        return OTLPMetricExporter()
    _certificate_wins("METRICS")
    from opentelemetry.exporter.otlp.proto.http import metric_exporter as http

    return http.OTLPMetricExporter()


def log_exporter(protocol: str) -> Any:
    """The SDK's exporter of logs."""
    if protocol == "grpc":
        from opentelemetry.exporter.otlp.proto.grpc._log_exporter import OTLPLogExporter

        return OTLPLogExporter()
    _certificate_wins("LOGS")
    from opentelemetry.exporter.otlp.proto.http import _log_exporter as http

    return http.OTLPLogExporter()


def _certificate_wins(signal: str) -> None:
    """``requests`` puts its own variables above a session's certificate: OpenTelemetry's wins."""
    if _variable(signal, "CERTIFICATE"):
        for variable in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):
            os.environ.pop(variable, None)


def _variable(signal: str, name: str) -> str:
    for variable in (f"OTEL_EXPORTER_OTLP_{signal}_{name}", f"OTEL_EXPORTER_OTLP_{name}"):
        value = os.environ.get(variable, "").strip()
        if value:
            return value
    return ""
