"""Steps of four kinds of programs, in which one rank may be held up before one of its lines.

    torchrun --standalone --nproc-per-node 4 delayed_steps.py KIND STEPS RANK MILLISECONDS

KIND: ``ddp`` (a reducer), ``pipeline`` (1F1B-like, messages), ``tp`` (an all_reduce per layer) or
``moe`` (all_to_all). RANK -1 holds nobody up. Rank 0 prints the seconds that its steps took.
"""

from __future__ import annotations

import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

WARM = 3


def work(seconds: float) -> None:
    """Computation that needs no processor, so that ranks do not take it from each other."""
    time.sleep(seconds)


def ddp(steps: int, held: float) -> None:
    """A loader, forward, backward with its all_reduces."""
    model = DistributedDataParallel(torch.nn.Sequential(*[torch.nn.Linear(64, 64)] * 4))
    for _ in range(steps):
        work(0.03)
        loader(held)
        model(torch.ones(8, 64)).sum().backward()


def loader(held: float) -> None:
    work(held)


def pipeline(steps: int, held: float) -> None:
    """Four microbatches down the ranks and back."""
    rank, world = dist.get_rank(), dist.get_world_size()
    ball = torch.ones(256)
    for _ in range(steps):
        for _ in range(4):
            if rank > 0:
                dist.recv(ball, rank - 1)
            work(0.006)
            loader(held / 4)
            if rank < world - 1:
                dist.send(ball, rank + 1)
        for _ in range(4):
            if rank < world - 1:
                dist.recv(ball, rank + 1)
            work(0.012)
            if rank > 0:
                dist.send(ball, rank - 1)
    dist.barrier()


def tp(steps: int, held: float) -> None:
    """Three layers, each with its all_reduce; the second is the slow one."""
    for _ in range(steps):
        for layer in range(3):
            work(0.012)
            if layer == 1:
                loader(held)
            dist.all_reduce(torch.ones(1024))


def moe(steps: int, held: float) -> None:
    """Tokens to the experts and back, then a gradient."""
    world = dist.get_world_size()
    for _ in range(steps):
        tokens, out = torch.ones(world * 64), torch.empty(world * 64)
        dist.all_to_all_single(out, tokens)
        work(0.015)
        loader(held)
        dist.all_to_all_single(tokens, out)
        work(0.009)
        dist.all_reduce(torch.ones(1024))


def main() -> None:
    kind, steps, rank, milliseconds = sys.argv[1], *map(int, sys.argv[2:5])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    run = {"ddp": ddp, "pipeline": pipeline, "tp": tp, "moe": moe}[kind]
    run(WARM, 0.0)
    dist.barrier()
    began = time.monotonic()
    run(steps, milliseconds / 1000 if dist.get_rank() == rank else 0.0)
    dist.barrier()
    if dist.get_rank() == 0:
        print(time.monotonic() - began, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
