"""Start the ranks of a program directly, without torchrun, also in ways that torchrun forbids.

    python examples/faults/launch.py --world 3 examples/faults/slow_loader.py --culprit 2
    python examples/faults/launch.py --world 3 --ranks 0,1 examples/faults/rendezvous.py

Rank variables and a free port come through the environment. It ends only what it started: all of it
when it is itself told to stop. It returns the first exit code that is not zero (128 + n for a
signal), once all ranks have ended.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import secrets
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable


def free_port() -> int:
    """A port on which nobody listens now, below those that kernels give out by themselves: one of
    these may be the connection of another program before a rank listens on it.
    """
    while True:
        port = secrets.choice(range(15_000, 32_000))
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


def assignment(text: str) -> tuple[int, str, str]:
    """Read `RANK:NAME=VALUE`."""
    rank, _, rest = text.partition(":")
    name, _, value = rest.partition("=")
    return int(rank), name, value


def prefix(text: str) -> tuple[int, list[str]]:
    """Read `RANK:COMMAND`."""
    rank, _, command = text.partition(":")
    return int(rank), shlex.split(command)


def parse() -> argparse.Namespace:
    """Options of the launcher, then the program with its own."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--world", type=int, default=3)
    parser.add_argument("--ranks", help="start these, in this order: 0,1,1 (default: all once)")
    parser.add_argument(
        "--set", type=assignment, action="append", default=[], metavar="RANK:NAME=VALUE",
        help="an environment variable of one rank; {free} stands for a port where nobody listens",
    )  # fmt: skip
    parser.add_argument(
        "--under", type=prefix, action="append", default=[], metavar="RANK:COMMAND",
        help="a command that starts one rank: 1:ip netns exec other",
    )  # fmt: skip
    parser.add_argument("--taken", action="store_true", help="an untraced program has the port")
    parser.add_argument("--pause", type=float, default=0.0, help="seconds between two starts")
    parser.add_argument("program")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    return parser.parse_args()


def environment(rank: int, port: int, options: argparse.Namespace) -> dict[str, str]:
    """The environment of one rank."""
    variables = dict(
        os.environ,
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE=str(options.world),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
        OMP_NUM_THREADS="1",
    )
    for one, name, value in options.set:
        if one == rank:
            variables[name] = str(free_port()) if value == "{free}" else value
    return variables


def stopper(started: list[subprocess.Popen[bytes]]) -> Callable[[int, object], None]:
    """A signal handler that ends what was started and then us."""

    def stop(number: int, _frame: object) -> None:
        for process in started:
            if process.poll() is None:
                process.kill()
        raise SystemExit(128 + number)

    return stop


def main() -> int:
    """Start all, wait for all."""
    options = parse()
    wanted = options.ranks.split(",") if options.ranks else range(options.world)
    other = socket.create_server(("127.0.0.1", 0)) if options.taken else None
    port = other.getsockname()[1] if other else free_port()
    started: list[subprocess.Popen[bytes]] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stopper(started))
    for rank in wanted:
        started.append(
            subprocess.Popen(
                [
                    *dict(options.under).get(int(rank), ()),
                    sys.executable,
                    options.program,
                    *options.arguments,
                ],
                env=environment(int(rank), port, options),
            )
        )
        time.sleep(options.pause)
    codes = [process.wait() for process in started]
    return next((code if code > 0 else 128 - code for code in codes if code), 0)


if __name__ == "__main__":
    raise SystemExit(main())
