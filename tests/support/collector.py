"""A collector on OTLP's official protocol stubs, over gRPC and HTTP, that can behave badly."""

from __future__ import annotations

import gzip
import threading
from concurrent import futures
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import grpc
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2 as metrics_pb
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2_grpc as metrics_grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as trace_pb
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as trace_grpc


@dataclass(frozen=True, slots=True)
class Received:
    """One span with the attributes of its resource, ids in hexadecimal."""

    name: str
    trace: str
    span: str
    parent: str
    start: int
    end: int
    attributes: dict[str, Any]
    resource: dict[str, Any]
    links: list[tuple[str, str, str]]
    """(trace, span, what the link means)."""
    status: int
    description: str
    events: tuple[tuple[str, dict[str, Any]], ...] = ()

    @property
    def type(self) -> str:
        return str(self.attributes.get("disttrace.type"))

    @property
    def pending(self) -> bool:
        return bool(self.attributes.get("disttrace.pending"))


def exporting(folder: Path, collector: Collector, export: str, **more: str) -> dict[str, Any]:
    """Variables that trace a program and send it to a collector."""
    return {
        "DISTTRACE": "1", "DISTTRACE_DIR": str(folder), "DISTTRACE_EXPORT": export,
        "OTEL_EXPORTER_OTLP_ENDPOINT": collector.endpoint, **more,
    }  # fmt: skip


@dataclass(slots=True)
class Collector:
    """What came in; it may refuse all with a status."""

    refuse: bool = False
    spans: list[Received] = field(default_factory=list)
    metrics: dict[str, list[Any]] = field(default_factory=dict)
    """Data points by name of the metric, the newest request's last."""
    headers: list[dict[str, str]] = field(default_factory=list)
    endpoint: str = ""
    _lock: Any = field(default_factory=threading.Lock)
    _stop: Any = None

    def operations(self) -> list[Received]:
        return [s for s in self.of("operation") if not s.pending]

    def pending(self) -> list[Received]:
        return [s for s in self.of("operation") if s.pending]

    def of(self, kind: str) -> list[Received]:
        """Spans that stand for ``kind``."""
        with self._lock:
            return [s for s in self.spans if s.type == kind]

    def take_spans(self, request: Any, headers: dict[str, str]) -> bool:
        """Keep a request; False if it is refused."""
        if self.refuse:
            return False
        with self._lock:
            self.headers.append(headers)
            for group in request.resource_spans:
                resource = _plain(group.resource.attributes)
                for scope in group.scope_spans:
                    self.spans += [_received(span, resource) for span in scope.spans]
        return True

    def take_metrics(self, request: Any) -> None:
        """Keep a request's data points."""
        with self._lock:
            for group in request.resource_metrics:
                for scope in group.scope_metrics:
                    for metric in scope.metrics:
                        data = getattr(metric, metric.WhichOneof("data"))
                        self.metrics.setdefault(metric.name, []).extend(data.data_points)

    def stop(self) -> None:
        if self._stop is not None:
            self._stop()
            self._stop = None

    def __enter__(self) -> Collector:
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()


def serve_grpc(collector: Collector, tls: tuple[Path, Path] | None = None) -> Collector:
    """Serve on a free port; ``tls`` is (key, certificate)."""
    server = grpc.server(futures.ThreadPoolExecutor(4))

    class Traces(trace_grpc.TraceServiceServicer):
        def Export(self, request: Any, context: Any) -> Any:  # noqa: N802
            headers = dict(context.invocation_metadata())
            if not collector.take_spans(request, headers):
                context.abort(grpc.StatusCode.PERMISSION_DENIED, "not today")
            return trace_pb.ExportTraceServiceResponse()

    class Metrics(metrics_grpc.MetricsServiceServicer):
        def Export(self, request: Any, context: Any) -> Any:  # noqa: N802
            collector.take_metrics(request)
            return metrics_pb.ExportMetricsServiceResponse()

    trace_grpc.add_TraceServiceServicer_to_server(Traces(), server)
    metrics_grpc.add_MetricsServiceServicer_to_server(Metrics(), server)
    if tls is None:
        port = server.add_insecure_port("127.0.0.1:0")
    else:
        key, certificate = (path.read_bytes() for path in tls)
        credentials = grpc.ssl_server_credentials([(key, certificate)])
        port = server.add_secure_port("localhost:0", credentials)
    server.start()
    scheme, host = ("http", "127.0.0.1") if tls is None else ("https", "localhost")
    collector.endpoint = f"{scheme}://{host}:{port}"
    collector._stop = lambda: server.stop(0).wait(5)
    return collector


def serve_http(collector: Collector, tls: tuple[Path, Path] | None = None) -> Collector:
    """Serve ``/v1/traces`` and ``/v1/metrics`` on a free port."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            code = 200
            if self.path.endswith("/v1/traces"):
                request = trace_pb.ExportTraceServiceRequest.FromString(body)
                headers = {name.lower(): value for name, value in self.headers.items()}
                code = 200 if collector.take_spans(request, headers) else 403
            else:
                collector.take_metrics(metrics_pb.ExportMetricsServiceRequest.FromString(body))
            self.send_response(code)
            self.send_header("Content-Type", "application/x-protobuf")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *args: object) -> None:
            """Silence."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    scheme, host = "http", "127.0.0.1"
    if tls is not None:
        import ssl

        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(tls[1], tls[0])
        server.socket = context.wrap_socket(server.socket, server_side=True)
        scheme, host = "https", "localhost"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    collector.endpoint = f"{scheme}://{host}:{server.server_address[1]}"

    def stop() -> None:
        server.shutdown()
        server.server_close()
        thread.join(5)

    collector._stop = stop
    return collector


SERVE = {"grpc": serve_grpc, "http/protobuf": serve_http}


def _received(span: Any, resource: dict[str, Any]) -> Received:
    return Received(
        name=span.name, trace=span.trace_id.hex(), span=span.span_id.hex(),
        parent=span.parent_span_id.hex(), start=span.start_time_unix_nano,
        end=span.end_time_unix_nano, attributes=_plain(span.attributes),
        resource=resource,
        links=[
            (
                link.trace_id.hex(), link.span_id.hex(),
                str(_plain(link.attributes).get("disttrace.link")),
            )
            for link in span.links
        ],
        status=span.status.code,
        description=span.status.message,
        events=tuple((event.name, _plain(event.attributes)) for event in span.events),
    )  # fmt: skip


def _plain(attributes: Any) -> dict[str, Any]:
    return {item.key: _value(item.value) for item in attributes}


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(v) for v in value.array_value.values]
    return getattr(value, kind) if kind else None
