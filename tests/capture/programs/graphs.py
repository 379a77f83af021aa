"""Functions with functional collectives, compiled as one graph; prints the graphs and results."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.utils import counters
from torch.distributed import _functional_collectives as functional

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
group = dist.group.WORLD


def printed(graph: Any, _: Any) -> Any:
    print(graph.code)
    return graph.forward


def reduced(x: torch.Tensor) -> torch.Tensor:
    return functional.all_reduce(x * 2, "sum", group) + 1


def gathered(x: torch.Tensor) -> torch.Tensor:
    return functional.all_gather_tensor(x, 0, group).sum()


def rewritten(x: torch.Tensor) -> torch.Tensor:
    y = x * 3
    dist.all_reduce(y)
    return y


def differentiated(x: torch.Tensor) -> torch.Tensor:
    return functional.all_gather_tensor_autograd(x, 0, group).sum()


graphs = aot_autograd(fw_compiler=printed, bw_compiler=printed)
for function in (reduced, gathered, rewritten, differentiated):
    compiled = torch.compile(function, backend=graphs, fullgraph=True)
    for n in (2, 3):
        x = torch.ones(n, requires_grad=function is differentiated)
        result = compiled(x)
        if result.requires_grad:
            result.backward()
            print(function.__name__, x.grad)
        print(function.__name__, result)
print("breaks", dict(counters["graph_break"]), "frames", dict(counters["frames"]))
print("recompiles", dict(counters["recompiles"]), flush=True)
dist.destroy_process_group()
