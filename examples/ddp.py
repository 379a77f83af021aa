"""Data-parallel training of a small network by DistributedDataParallel.

    torchrun --standalone --nproc-per-node 2 examples/ddp.py

With DISTTRACE=1 in front, `disttrace view` shows what DDP does by itself: how it compares and
broadcasts the parameters, and one all-reduce of the gradients per step that C++ code issues during
`backward`. `disttrace diagnose` finds it healthy.
"""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

STEPS = 5


def main() -> None:
    """Fit a line through points of which every rank has its own."""
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    points = torch.randn(64, 8, generator=torch.Generator().manual_seed(dist.get_rank()))
    target = points.sum(dim=1, keepdim=True)
    loss = torch.zeros(())
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(points), target)
        loss.backward()
        optimizer.step()
    mean = loss.detach() / dist.get_world_size()
    dist.all_reduce(mean)
    if dist.get_rank() == 0:
        sys.stdout.write(f"mean loss after {STEPS} steps: {mean.item():.3f}\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
