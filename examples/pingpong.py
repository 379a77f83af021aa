"""Blocking ping-pong between two ranks, by spawn or under torchrun.

    python examples/pingpong.py
    torchrun --standalone --nproc-per-node 2 examples/pingpong.py

With DISTTRACE=1 in front, `disttrace view` draws one arrow per message, rank 0 to rank 1 and back,
each 4 KiB with tag 0, and how long each receiver had waited; `disttrace diagnose` finds it healthy.
"""

from __future__ import annotations

import os
import socket
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

ROUNDS = 5


def pingpong() -> None:
    """Send a ball to and fro; each round adds one on each side."""
    rank = dist.get_rank()
    ball = torch.zeros(1024)
    for _ in range(ROUNDS):
        if rank == 0:
            dist.send(ball + 1, dst=1)
            dist.recv(ball, src=1)
        elif rank == 1:
            dist.recv(ball, src=0)
            dist.send(ball + 1, dst=0)
    if rank == 0:
        sys.stdout.write(f"rank 0: the ball came back with {ball[0].item():g}\n")


def spawned(rank: int, port: int) -> None:
    """What a process does that was started by spawn and not by torchrun."""
    os.environ.update(
        RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port)
    )
    run()


def run() -> None:
    """Join the group that the environment describes, play, and leave."""
    dist.init_process_group("gloo")
    pingpong()
    dist.destroy_process_group()


def main() -> None:
    """Use torchrun's ranks where there are some, else spawn two."""
    if "RANK" in os.environ:
        run()
        return
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    mp.spawn(spawned, args=(port,), nprocs=2)


if __name__ == "__main__":
    main()
