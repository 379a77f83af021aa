"""Fully sharded training of a small network (FSDP2, `fully_shard`) on gloo, from torch 2.6 on.

    torchrun --standalone --nproc-per-node 2 examples/fsdp2.py

With DISTTRACE=1 in front, `disttrace view` shows per step the all-gathers of the shards, for
forward and again for backward, and the reduce-scatters of the gradients. `disttrace diagnose`
finds it healthy.
"""

from __future__ import annotations

import gc
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

STEPS = 3


def main() -> None:
    """Shard each layer over all ranks and train."""
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 1))
    for layer in (model[0], model[2]):
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    points = torch.randn(32, 16)
    target = points.sum(dim=1, keepdim=True)
    loss = torch.zeros(())
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(points), target)
        loss.backward()
        optimizer.step()
    if dist.get_rank() == 0:
        sys.stdout.write(f"loss after {STEPS} steps: {loss.item():.3f}\n")
    # FSDP's frames keep the group; freed after it, torch 2.13 sometimes aborts in the destructor.
    del model, optimizer, loss
    gc.collect()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
