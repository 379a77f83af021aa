"""Start the torchrun agents of several nodes on one machine, also in ways that do not fit together.

    python examples/faults/nodes.py --nnodes 2 examples/faults/nodes_rendezvous.py
    python examples/faults/nodes.py --nnodes 2 --start 1 examples/faults/nodes_rendezvous.py

Each node has a loopback address of its own, and all meet at a rendezvous on a free port, for which
they wait two minutes. When it is told to stop it tells the agents, which end their workers. It
returns the first exit code that is not zero (128 + n for a signal), once all agents have ended.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time

from launch import free_port

LIMIT_S = 120


def option(text: str) -> tuple[int, str, str]:
    """Read `NODE:NAME=VALUE`."""
    node, _, rest = text.partition(":")
    name, _, value = rest.partition("=")
    return int(node), name, value


def parse() -> argparse.Namespace:
    """Options of the launcher, then the program with its own."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--nnodes", default="2", help="as for torchrun: 2, or 1:2")
    parser.add_argument("--start", type=int, default=2, help="start that many nodes")
    parser.add_argument("--per-node", type=int, default=1)
    parser.add_argument("--backend", choices=["c10d", "static"], default="c10d")
    parser.add_argument("--pause", type=float, default=0.0, help="seconds between two starts")
    parser.add_argument(
        "--set", type=option, action="append", default=[], metavar="NODE:NAME=VALUE",
        help="another option of one node's torchrun: 1:rdzv-id=other",
    )  # fmt: skip
    parser.add_argument("program")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    return parser.parse_args()


def command(node: int, port: int, options: argparse.Namespace) -> list[str]:
    """The torchrun of one node."""
    chosen = {
        "nnodes": options.nnodes,
        "nproc-per-node": str(options.per_node),
        "local-addr": f"127.0.0.{node + 1}",
    }
    if options.backend == "c10d":
        chosen |= {
            "rdzv-backend": "c10d",
            "rdzv-endpoint": f"127.0.0.1:{port}",
            "rdzv-id": "nodes",
            "rdzv-conf": f"join_timeout={LIMIT_S}",
        }
    else:
        chosen |= {"node-rank": str(node), "master-addr": "127.0.0.1", "master-port": str(port)}
        chosen |= {"rdzv-conf": f"timeout={LIMIT_S}"}
    chosen |= {name: value for one, name, value in options.set if one == node}
    flags = [f"--{name}={value}" for name, value in chosen.items()]
    torchrun = [sys.executable, "-m", "torch.distributed.run", *flags]
    return [*torchrun, options.program, *options.arguments]


def main() -> int:
    """Start all, wait for all."""
    options = parse()
    port = free_port()
    started: list[subprocess.Popen[bytes]] = []

    def stop(_number: int, _frame: object) -> None:
        for process in started:
            process.terminate()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    for node in range(options.start):
        if node:
            time.sleep(options.pause)
        environment = dict(os.environ, OMP_NUM_THREADS="1", NODE=str(node))
        started.append(subprocess.Popen(command(node, port, options), env=environment))
    codes = [process.wait() for process in started]
    return next((code if code > 0 else 128 - code for code in codes if code), 0)


if __name__ == "__main__":
    raise SystemExit(main())
