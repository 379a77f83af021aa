"""First calls of a group, of a pair and of an operation, each healthy however long it takes.

``--missing RANK``: that one never comes to the first of them.
"""

from __future__ import annotations

import argparse
import os
import time

import torch
import torch.distributed as dist

parser = argparse.ArgumentParser()
parser.add_argument("--missing", type=int, default=-1)
missing = parser.parse_args().missing
dist.init_process_group("gloo")
rank = int(os.environ["RANK"])
if rank == missing:
    time.sleep(600)
x = torch.ones(4)
dist.all_reduce(x)
if rank < 2:
    (dist.send if rank == 0 else dist.recv)(torch.ones(1), 1 - rank)
dist.barrier()
print(f"sum {sum(x.tolist()):.0f}\n", end="", flush=True)
dist.destroy_process_group()
