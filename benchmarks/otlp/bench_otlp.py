"""What exporting by OTLP adds to journals alone, with collectors that work, sleep and are dead.

    python benchmarks/otlp/bench_otlp.py [--operations 20000] [--rounds 5]  about five minutes
    python benchmarks/otlp/bench_otlp.py --write  and put the figures into docs/dev/otlp.md

One process makes ``all_reduce`` calls on the ``fake`` backend, whose figures are steady, while its
exporter works beside it. Each round runs every case once, in turn; ratios and delays compare
medians with ``json``. The exit is measured from the program's last statement until its parent has
reaped it, interpreter shutdown included.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import platform
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent import futures
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.report import Report as Found  # noqa: E402
from benchmarks.report import Table, Verdict, document, replaced  # noqa: E402

PAGE = ROOT / "docs" / "dev" / "otlp.md"
SECTION = "cost"
EXIT_GOAL_S = 0.2
CHILD = """
import os, sys, time, torch, torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore
dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=8)
tensor = torch.ones(4)
def burst(count):
    begin = time.thread_time()  # the collector and the exporter have these cores, too
    for _ in range(count):
        dist.all_reduce(tensor)
    return (time.thread_time() - begin) / count
burst(2000)
time.sleep(1.5)  # the exporter has started by now, and takes part in what is measured
count = int(sys.argv[1])
print(burst(count) * 1e6, flush=True)
os.write(1, f"{time.time()}".encode())
"""
GRPC, HTTP = "grpc", "http/protobuf"


@contextlib.contextmanager
def by_grpc(delay: float) -> Iterator[str]:
    """A gRPC collector that takes everything after ``delay`` seconds, and keeps nothing."""
    import grpc

    def answer(request: bytes, context: Any) -> bytes:
        time.sleep(delay)
        return b""

    class Anything(grpc.GenericRpcHandler):  # type: ignore[misc, unused-ignore]
        def service(self, details: Any) -> Any:
            return grpc.unary_unary_rpc_method_handler(answer)

    server = grpc.server(futures.ThreadPoolExecutor(2))
    server.add_generic_rpc_handlers((Anything(),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"http://127.0.0.1:{port}"
    server.stop(0).wait(5)


@contextlib.contextmanager
def by_http(delay: float) -> Iterator[str]:
    """The same over HTTP."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            time.sleep(delay)
            with contextlib.suppress(OSError):  # its exporter was ended meanwhile
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

        def log_message(self, *args: object) -> None:
            """Silence."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    server.block_on_close = False
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()
    thread.join(5)


@contextlib.contextmanager
def silent() -> Iterator[str]:
    """Accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


@contextlib.contextmanager
def nobody() -> Iterator[str]:
    """A port on which no process listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{probe.getsockname()[1]}"


Endpoint = Callable[[], contextlib.AbstractContextManager[str]]
SERVERS: dict[str, Callable[[float], contextlib.AbstractContextManager[str]]] = {
    GRPC: by_grpc,
    HTTP: by_http,
}


@dataclass(slots=True)
class Case:
    """A way of exporting, and what was measured of it."""

    name: str
    export: str
    endpoint: Endpoint
    protocol: str = GRPC
    call_us: list[float] = field(default_factory=list)
    exit_s: list[float] = field(default_factory=list)


def _cases(protocol: str) -> Iterator[Case]:
    server, word = SERVERS[protocol], protocol.partition("/")[0]
    kinds: dict[str, Endpoint] = {
        "working collector": lambda: server(0.0),
        "5 s per request": lambda: server(5.0),
        "never answers": silent,
        "no collector": nobody,
    }
    for kind, endpoint in kinds.items():
        yield Case(f"{word}, {kind}", "json,otlp", endpoint, protocol)


def cases() -> list[Case]:
    """What is measured; the first one is what the others are compared with."""
    return [Case("json alone", "json", nobody), *_cases(GRPC), *_cases(HTTP)]


def measure(case: Case, operations: int) -> None:
    """Run the case once in a process of its own; its exporter does not outlive the measurement."""
    with case.endpoint() as endpoint, tempfile.TemporaryDirectory() as folder:
        environ = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "viewer"))),
            "DISTTRACE": "1",
            "DISTTRACE_DIR": folder,
            "DISTTRACE_EXPORT": case.export,
            "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint,
            "OTEL_EXPORTER_OTLP_PROTOCOL": case.protocol,
            "OTEL_METRICS_EXPORTER": "none",
            "OMP_NUM_THREADS": "1",
        }
        command = [sys.executable, "-c", CHILD, str(operations)]
        done = subprocess.run(
            command,
            env=environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=300,
            check=True,
        )
        ended = time.time()
        call, last = done.stdout.split()
        case.call_us.append(float(call))
        case.exit_s.append(ended - float(last))
        end_exporters(folder)


def end_exporters(folder: str) -> None:
    """End the exporter of ``folder``: what it would still send is not what is measured."""
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            command = (entry / "cmdline").read_bytes().split(b"\0")
            if folder.encode() in command:
                os.kill(int(entry.name), 9)


def found(measured: list[Case]) -> Found:
    """The table, and the exit against its goal."""
    base_call = statistics.median(measured[0].call_us)
    base_exit = statistics.median(measured[0].exit_s)
    rows, latest = [], 0.0
    for case in measured:
        call = statistics.median(case.call_us)
        later = statistics.median(case.exit_s) - base_exit
        worst = max(case.exit_s) - base_exit
        if case is not measured[0]:
            latest = max(latest, later)
        rows.append(
            (
                case.name,
                f"{call:.2f}",
                f"{call / base_call:.2f}",
                f"{later:+.3f}",
                f"{worst:+.3f}",
            )
        )
    columns = ("export", "us per call", "ratio", "exit later by, s", "latest of all, s")
    title = "A call and the exit of the traced process"
    note = (
        "A call in processor time of its thread, with the exporter at work; the exit by the clock."
    )
    goal = f"The exit comes at most {EXIT_GOAL_S:g} s later, whatever the collector"
    verdict = Verdict(goal, f"{latest:+.3f} s", latest <= EXIT_GOAL_S)
    return Found((Table(title, columns, tuple(rows), note),), (verdict,))


def main() -> None:
    """Measure, print a table, and write it where asked."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--operations", type=int, default=20000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--write", action="store_true", help="put the figures into docs/dev/otlp.md"
    )
    options = parser.parse_args()
    measured = cases()
    for number in range(options.rounds):
        for case in measured:
            measure(case, options.operations)
        sys.stderr.write(f"round {number + 1} of {options.rounds}\n")
    import torch

    text = document(
        [found(measured)],
        f"Python {platform.python_version()}, torch {torch.__version__}, {os.cpu_count()} cores, "
        f"{options.operations} calls, {options.rounds} rounds; load at the end "
        f"{os.getloadavg()[0]:.1f}.",
    )
    print(text)
    if options.write:
        PAGE.write_text(replaced(PAGE.read_text(), text, SECTION))


if __name__ == "__main__":
    main()
