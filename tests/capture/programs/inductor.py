"""A functional collective that inductor compiles; prints its result."""

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch.testing._internal.distributed.fake_pg import FakeStore


def step(tensor: torch.Tensor) -> torch.Tensor:
    return functional.all_reduce(tensor, "sum", dist.group.WORLD)


dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=1)
print(step(torch.ones(2)).tolist())  # what is traced without inductor stays traced with it
print(torch.compile(step)(torch.ones(2)).tolist())
dist.destroy_process_group()
