"""1F1B of a pipeline: each step one batch with both neighbours; ``--missing``: leaves one out."""

from __future__ import annotations

import argparse
import time

import torch
import torch.distributed as dist

parser = argparse.ArgumentParser()
parser.add_argument("--missing", type=int, default=-1)
missing = parser.parse_args().missing
dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
for step in range(3):
    if rank == missing and step == 2:
        time.sleep(600)
    out, into = torch.full((4,), float(rank)), torch.zeros(4)
    batch = [
        dist.P2POp(dist.isend, out, (rank + 1) % size),
        dist.P2POp(dist.irecv, into, (rank - 1) % size),
    ]
    for work in dist.batch_isend_irecv(batch):
        work.wait()
    assert into.tolist() == [float((rank - 1) % size)] * 4
dist.barrier()
print("all steps\n", end="", flush=True)
dist.destroy_process_group()
