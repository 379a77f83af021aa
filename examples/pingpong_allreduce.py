"""Ping-pong between ranks 0 and 1, then all-reduces over everybody: the demo of `make demo`.

    torchrun --standalone --nproc-per-node 2 examples/pingpong_allreduce.py

With DISTTRACE=1 in front, `disttrace view` shows three messages each way and then three
all-reduces (SUM of 1024 float32) in their order, who came last to each and how long the others
waited; the ranks come in turn a little late. `disttrace diagnose` finds it healthy.
"""

from __future__ import annotations

import sys
import time

import torch
import torch.distributed as dist

ROUNDS = 3


def pingpong(rank: int) -> None:
    """Rank 0 serves, rank 1 returns; further ranks look on."""
    ball = torch.zeros(256)
    for _ in range(ROUNDS):
        if rank == 0:
            dist.send(ball, dst=1)
            dist.recv(ball, src=1)
        elif rank == 1:
            dist.recv(ball, src=0)
            dist.send(ball + 1, dst=0)


def sums(rank: int, size: int) -> float:
    """Add up over all ranks; in each step another rank computes a little longer."""
    data = torch.ones(1024)
    for step in range(ROUNDS):
        if step % size == rank:
            time.sleep(0.002)
        dist.all_reduce(data)
    return float(data[0])


def main() -> None:
    """Join, play, add up, leave."""
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    pingpong(rank)
    total = sums(rank, size)
    if rank == 0:
        sys.stdout.write(f"after {ROUNDS} all-reduces over {size} ranks: {total:g}\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
