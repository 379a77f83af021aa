"""A compiled function with an asynchronous collective in it; prints its breaks and its result."""

from __future__ import annotations

import torch
import torch._dynamo
import torch.distributed as dist
from torch._dynamo.utils import counters


def step(x: torch.Tensor) -> torch.Tensor:
    x = x * 2
    work = dist.all_reduce(x, async_op=True)
    assert work is not None
    work.wait()
    dist.barrier()
    x = torch.ops._c10d_functional.wait_tensor(
        torch.ops._c10d_functional.all_reduce(x, "sum", dist.group.WORLD.group_name)
    )
    return x + 1


dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
compiled = torch.compile(step, backend="eager")
for n in range(1, 6):
    result = compiled(torch.ones(n))
print("result", result.tolist())
print("breaks", sum(counters["graph_break"].values()))
print("frames", dict(counters["frames"]))
print("recompiles", dict(counters["recompiles"]), flush=True)
dist.destroy_process_group()
