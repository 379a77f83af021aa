"""DDP whose reducer gets disttrace's relays, although the stand-in's group is a class of Python's.

Real groups of NCCL get relays because they are C++'s. ``--missing``: rank 1 leaves a step out.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import torch
import torch.distributed as dist

from disttrace.capture.before_2_15.relays import Relays

parser = argparse.ArgumentParser()
parser.add_argument("--missing", action="store_true")
missing = parser.parse_args().missing
kept: dict[int, Any] = {}


def of(self: Any, group: Any) -> Any:
    """As ``Relays._of``, for a group without backends of C++."""
    if id(group) not in kept:
        kept[id(group)] = self._class(group)
        self._capture.groups.stands_for(kept[id(group)], group)
    return kept[id(group)]


Relays._of = of  # type: ignore[method-assign]
dist.init_process_group("gloo")
rank = dist.get_rank()
layers = torch.nn.Sequential(*[torch.nn.Linear(8, 8, bias=False) for _ in range(3)])
model = torch.nn.parallel.DistributedDataParallel(layers, bucket_cap_mb=0.0001)
for step in range(4):
    if missing and rank == 1 and step == 3:
        time.sleep(600)
    model.zero_grad()
    model(torch.full((2, 8), float(rank + 1))).sum().backward()
    gradient = float(next(layers[2].parameters()).grad[0, 0])
    both = [torch.zeros(1) for _ in range(2)]
    dist.all_gather(both, torch.tensor([gradient]))
    assert both[0].item() == both[1].item()
print("equal\n", end="", flush=True)
dist.destroy_process_group()
