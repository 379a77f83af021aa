"""All-reduce over a subgroup made by `new_group([0, 1])`.

    torchrun --standalone --nproc-per-node 3 examples/allreduce_subgroup.py

With DISTTRACE=1 in front, `disttrace view` shows `new_group` on every rank (all must call it), two
all-reduces in the group of ranks 0 and 1, and one barrier of all. Rank 2 has no part in the
all-reduces, and `disttrace diagnose` does not miss it there.
"""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist

MEMBERS = [0, 1]


def main() -> None:
    """Members add up among themselves, then everybody meets."""
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    group = dist.new_group(MEMBERS)
    if rank in MEMBERS:
        data = torch.full((4,), float(rank + 1))
        dist.all_reduce(data, group=group)
        dist.all_reduce(data, op=dist.ReduceOp.MAX, group=group)
        sys.stdout.write(f"rank {rank}: {data[0].item():g}\n")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
