"""Three ranks on NCCL hang, and ``disttrace attach`` asks their Flight Recorders while they do.

    python asked.py missing|mismatch

Rank 2 does not come to the fourth all_reduce, or calls broadcast there. Each has the worker server
of torch. Prints what is said.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _WorkerServer

WORLD = 3


def rank(folder: Path, fault: str) -> None:
    number = int(os.environ["RANK"])
    device = torch.device("cuda", number % torch.cuda.device_count())
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")
    server = _WorkerServer(f"{folder}/{number}.sock")
    assert server is not None
    one = torch.ones(4, device=device)
    for _ in range(3):
        dist.all_reduce(one)
        torch.cuda.synchronize()
    (folder / f"ready{number}").touch()
    if number == 2 and fault == "missing":
        time.sleep(600)
    if number == 2:
        dist.broadcast(one, 0)
    dist.all_reduce(one)
    torch.cuda.synchronize()


def free_port() -> int:
    """One that nobody uses: where this runs, only torch may be installed."""
    with socket.socket() as one:
        one.bind(("", 0))
        port: int = one.getsockname()[1]
        return port


def main(fault: str) -> int:
    """Exit code of ``attach``, or 3 if a rank did not go on."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        settings = {
            "MASTER_ADDR": "localhost",
            "MASTER_PORT": str(free_port()),
            "WORLD_SIZE": str(WORLD),
            "TORCH_NCCL_TRACE_BUFFER_SIZE": "2000",
        }
        command = [sys.executable, __file__, fault, name]
        ranks = [
            subprocess.Popen(command, env={**os.environ, **settings, "RANK": str(number)})
            for number in range(WORLD)
        ]
        try:
            deadline = time.monotonic() + 120
            while len(list(folder.glob("ready*"))) < WORLD and time.monotonic() < deadline:
                time.sleep(0.1)
            pids = [str(one.pid) for one in ranks]
            python = os.environ.get("LOOKER", sys.executable)
            look = [python, "-m", "disttrace", "attach", "--ask", *pids]
            bare = {key: value for key, value in os.environ.items() if not key.startswith("LD_")}
            told = subprocess.run(look, env=bare, timeout=60)
            while told.returncode == 0 and time.monotonic() < deadline:  # not all are there yet
                told = subprocess.run(look, env=bare, timeout=60)
            return told.returncode if all(one.poll() is None for one in ranks) else 3
        finally:
            for one in ranks:
                one.kill()
                one.wait()


if __name__ == "__main__":
    if len(sys.argv) > 2:
        rank(Path(sys.argv[2]), sys.argv[1])
    else:
        sys.exit(main(sys.argv[1]))
