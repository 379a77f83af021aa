"""What each command costs in CPU on a small trace, where everything is installed.

    python benchmarks/viewer/commands.py            # traces two jobs by torchrun, measures all
    python benchmarks/viewer/commands.py HEALTHY HANG   # of journals that are there

Two jobs are read: a healthy loop under DDP in 4 ranks, and one in 2 ranks of which the second never
came. Of each command the lowest CPU time (user and system, of all threads) of ``--times`` runs
counts, also as a multiple of an interpreter that does nothing, which is what a slower machine
leaves as it is. Exits with 1 where a command is above its bound: 0.25 s for those that people call
while a job hangs, 0.4 s for all others.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

URGENT_S, OTHER_S = 0.25, 0.4
SECONDS_FOR_A_HANG = 40
DISTTRACE = (sys.executable, "-m", "disttrace")
PROGRAM = """
import sys, time, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
linear = lambda: torch.nn.Linear(64, 64)
model = DistributedDataParallel(torch.nn.Sequential(linear(), linear()))
optimizer = torch.optim.SGD(model.parameters(), 0.01)
for step in range(40):
    if sys.argv[1:] and step == 30 and dist.get_rank() == 1:
        time.sleep(600)
    optimizer.zero_grad()
    model(torch.randn(8, 64)).sum().backward()
    optimizer.step()
    dist.all_reduce(torch.ones(4))
dist.destroy_process_group()
"""


def traced(folder: Path, ranks: int, *arguments: str) -> Path:
    """The journals of the program in so many ranks; one that hangs is ended."""
    program = folder / "train.py"
    program.write_text(PROGRAM)
    out = folder / f"of {ranks}"
    launch = (sys.executable, "-m", "torch.distributed.run", "--standalone")
    with subprocess.Popen(
        (*launch, f"--nproc-per-node={ranks}", str(program), *arguments),
        env=os.environ | {"DISTTRACE": "1", "DISTTRACE_DIR": str(out), "OMP_NUM_THREADS": "1"},
        stderr=subprocess.DEVNULL,
    ) as job:
        try:
            job.wait(SECONDS_FOR_A_HANG if arguments else 300)
        except subprocess.TimeoutExpired:
            job.terminate()
    return out


def cost(command: Sequence[str], times: int) -> float:
    """The lowest CPU time in seconds."""
    return min(_once(command) for _ in range(times))


def _once(command: Sequence[str]) -> float:
    quiet = subprocess.DEVNULL
    process = subprocess.Popen(command, stdout=quiet, stderr=subprocess.PIPE)
    assert process.stderr is not None
    said = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode not in (0, 1):
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}: {said.decode()}")
    return usage.ru_utime + usage.ru_stime


class _Collector(BaseHTTPRequestHandler):
    """Takes what is sent to it."""

    def do_POST(self) -> None:
        """Answer that it came."""
        self.rfile.read(int(self.headers["Content-Length"] or 0))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """No line for each request."""


def commands(folder: str, other: str, scratch: Path) -> dict[str, tuple[float, list[str]]]:
    """Name, bound and arguments of each command on one trace."""
    urgent = {name: [name, folder] for name in ("diagnose", "jobs")}
    urgent |= {"top --once": ["top", "--once", folder]}
    others = {name: [name, folder] for name in ("view", "stats")}
    others |= {"stats --json": ["stats", "--json", folder], "diff": ["diff", folder, other]}
    for suffix in ("html", "jsonl", "json", "parquet", "tar"):
        path = str(scratch / f"out.{suffix}")
        others[f"export .{suffix}"] = ["export", folder, "-o", path]
    others |= {
        "export otlp": ["export", folder, "--format", "otlp"],
        "collect": ["collect", folder, "-o", str(scratch / "out.tar.gz")],
        "reduce": ["reduce", folder, "-o", str(scratch / "states")],
        "serve --once": ["serve", "--prometheus", "--once", folder],
    }
    return {name: (URGENT_S, words) for name, words in urgent.items()} | {
        name: (OTHER_S, words) for name, words in others.items()
    }


def main() -> int:
    """Print the table; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folders", nargs="*", metavar="DIR", help="a healthy job, a hang")
    parser.add_argument("--times", type=int, default=5)
    args = parser.parse_args()
    collector = HTTPServer(("127.0.0.1", 0), _Collector)
    threading.Thread(target=collector.serve_forever, daemon=True).start()
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # whose users compile everything each time
    os.environ["OTEL_EXPORTER_OTLP_PROTOCOL"] = "http/protobuf"
    os.environ["OTEL_EXPORTER_OTLP_ENDPOINT"] = f"http://127.0.0.1:{collector.server_port}"
    with tempfile.TemporaryDirectory() as scratch:
        room = Path(scratch)
        folders = args.folders or [str(traced(room, 4)), str(traced(room, 2, "hang"))]
        nothing = cost((sys.executable, "-c", "pass"), args.times)
        reading = cost((sys.executable, "-c", "import orjson"), args.times)
        print(f"python -c pass {nothing:.3f} s, import orjson {reading:.3f} s of CPU")
        print(f"{'':14}{'bound':>7}{'healthy':>9}{'times':>7}{'hang':>9}{'times':>7}")
        above = []
        rows = [commands(one, folders[0], room) for one in folders]
        for name, (bound, _) in rows[0].items():
            found = [cost((*DISTTRACE, *row[name][1]), args.times) for row in rows]
            shown = "".join(f"{each:9.3f}{each / nothing:7.1f}" for each in found)
            print(f"{name:14}{bound:7.2f}{shown}", flush=True)
            above += [name] * (max(found) >= bound)
    print(f"above their bounds: {', '.join(above)}" if above else "all are within their bounds")
    return bool(above)


if __name__ == "__main__":
    raise SystemExit(main())
