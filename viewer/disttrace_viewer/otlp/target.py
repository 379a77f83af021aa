"""Which exporter the environment asks for, and how to call its collector in a sentence."""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

from disttrace_viewer.load.problems import ViewerError

_DEFAULTS = {"grpc": "http://localhost:4317", "http/protobuf": "http://localhost:4318"}
_SHORTEST = 4  # of a header's value: less would mask words


def target(signal: str) -> tuple[str, str] | None:
    """Protocol and collector of a signal (``TRACES``, ``METRICS``) by OpenTelemetry's variables;
    None: it is not sent. Raises ViewerError."""
    wanted = os.environ.get(f"OTEL_{signal}_EXPORTER", "otlp").strip().lower() or "otlp"
    if os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true" or wanted == "none":
        return None
    if "otlp" not in wanted.split(","):
        raise ViewerError(f"OTEL_{signal}_EXPORTER is {wanted!r}; disttrace sends otlp or none")
    protocol = _variable(signal, "PROTOCOL") or "grpc"
    if protocol not in _DEFAULTS:
        raise ViewerError(
            f"the OTLP protocol is {protocol!r}; disttrace sends {' or '.join(_DEFAULTS)}"
        )
    return protocol, without_secrets(_variable(signal, "ENDPOINT") or _DEFAULTS[protocol])


def without_secrets(text: str) -> str:
    """``text`` without passwords in addresses, and headers that OpenTelemetry would quote."""
    for value in _secrets(os.environ):
        text = text.replace(value, "***")
    return re.sub(r"(://)[^\s/?#\"'<>@]+(?:@[^\s/?#\"'<>@]*){0,40}@", r"\1***@", text)


def _secrets(environ: Mapping[str, str]) -> list[str]:
    """Header values as they are written and as they are sent, longest first."""
    found = set()
    for name, headers in environ.items():
        if name.startswith("OTEL_EXPORTER_OTLP_") and name.endswith("HEADERS"):
            for header in headers.split(","):
                value = header.partition("=")[2].strip() or header.strip()
                found |= {value, unquote(value), unquote(value).partition(" ")[2]}
    return sorted((value for value in found if len(value) >= _SHORTEST), key=len, reverse=True)


_EXPORTERS = {
    "TRACES": ("trace_exporter", "OTLPSpanExporter"),
    "METRICS": ("metric_exporter", "OTLPMetricExporter"),
}
"""The SDK's, by signal: module and class, of one name for both protocols."""


def exporter(signal: str, protocol: str) -> Any:
    """The SDK's exporter of a signal, which reads the rest of the variables itself."""
    way = "grpc" if protocol == "grpc" else "http"
    if way == "http" and _variable(signal, "CERTIFICATE"):
        # ``requests`` puts its own variables above a session's certificate: OpenTelemetry's wins.
        for variable in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):
            os.environ.pop(variable, None)
    module, name = _EXPORTERS[signal]
    found = importlib.import_module(f"opentelemetry.exporter.otlp.proto.{way}.{module}")
    return getattr(found, name)()


def _variable(signal: str, name: str) -> str:
    variables = (f"OTEL_EXPORTER_OTLP_{signal}_{name}", f"OTEL_EXPORTER_OTLP_{name}")
    return next((v for one in variables if (v := os.environ.get(one, "").strip())), "")
