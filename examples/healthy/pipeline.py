"""A pipeline of stages: all forward passes of some micro-batches, then all backward ones.

    python examples/faults/launch.py --world 3 examples/healthy/pipeline.py

Legal: `disttrace diagnose` finds no error and no warning. Early stages run ahead and late ones wait
at the start; each has messages under way that the next has not asked for yet.
"""

from __future__ import annotations

import torch
import torch.distributed as dist

MICRO_BATCHES = 4
STEPS = 3


def step(rank: int, size: int) -> None:
    """One step: activations go up the stages, gradients come down."""
    sent = []
    for _ in range(MICRO_BATCHES):
        activation = torch.ones(16)
        if rank > 0:
            dist.recv(activation, src=rank - 1)
        if rank < size - 1:
            sent.append(dist.isend(activation * 2, dst=rank + 1))
    for _ in range(MICRO_BATCHES):
        gradient = torch.ones(16)
        if rank < size - 1:
            dist.recv(gradient, src=rank + 1)
        if rank > 0:
            sent.append(dist.isend(gradient / 2, dst=rank - 1))
    for work in sent:
        work.wait()


def main() -> None:
    dist.init_process_group("gloo")
    for _ in range(STEPS):
        step(dist.get_rank(), dist.get_world_size())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
