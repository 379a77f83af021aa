"""What exporting by OTLP adds to journals alone, with collectors that work, sleep and are dead.

    python benchmarks/bench_otlp.py [--operations 20000] [--rounds 5]

One process makes ``all_reduce`` calls on the ``fake`` backend, whose figures are steady. Each round
runs every case once, in turn; a ratio compares medians with ``json``.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent import futures
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
CHILD = """
import os, sys, time, torch, torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore
dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=8)
tensor = torch.ones(4)
def burst(count):
    begin = time.perf_counter()
    for _ in range(count):
        dist.all_reduce(tensor)
    return (time.perf_counter() - begin) / count
burst(2000)
time.sleep(1.5)  # the exporter has started by now, and takes part in what is measured
count = int(sys.argv[1])
print(burst(count) * 1e6, flush=True)
os.write(1, f"{time.time()}".encode())
"""


@contextlib.contextmanager
def collector(delay: float) -> Iterator[str]:
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
def working() -> Iterator[str]:
    """Answers at once."""
    with collector(0.0) as endpoint:
        yield endpoint


@contextlib.contextmanager
def slow() -> Iterator[str]:
    """Answers after five seconds."""
    with collector(5.0) as endpoint:
        yield endpoint


@contextlib.contextmanager
def silent() -> Iterator[str]:
    """Accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


@contextlib.contextmanager
def nobody() -> Iterator[str]:
    """A port on which nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{probe.getsockname()[1]}"


@dataclass(slots=True)
class Case:
    """A way of exporting, and what was measured of it."""

    name: str
    export: str
    endpoint: Any
    call_us: list[float] = field(default_factory=list)
    exit_s: list[float] = field(default_factory=list)


CASES = (
    Case("json", "json", nobody),
    Case("json,otlp, working collector", "json,otlp", working),
    Case("json,otlp, 5 s per request", "json,otlp", slow),
    Case("json,otlp, never answers", "json,otlp", silent),
    Case("json,otlp, nobody listens", "json,otlp", nobody),
)


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
            "OTEL_METRICS_EXPORTER": "none",
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


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--operations", type=int, default=20000)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    for number in range(arguments.rounds):
        for case in CASES:
            measure(case, arguments.operations)
        sys.stderr.write(f"round {number + 1} of {arguments.rounds}\n")
    base_call = statistics.median(CASES[0].call_us)
    base_exit = statistics.median(CASES[0].exit_s)
    print(f"{'case':32} {'us per call':>12} {'ratio':>6} {'later exit':>11}")
    for case in CASES:
        call = statistics.median(case.call_us)
        later = statistics.median(case.exit_s) - base_exit
        print(f"{case.name:32} {call:12.2f} {call / base_call:6.2f} {later:9.3f} s")


if __name__ == "__main__":
    main()
