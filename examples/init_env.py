"""The way in by `env://`: address, port, rank and world size come from the environment.

    torchrun --standalone --nproc-per-node 2 examples/init_env.py

With DISTTRACE=1 in front, `disttrace view` shows that torchrun's agent hosts the store in which
both workers meet, and when the group is ready.
"""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist


def main() -> None:
    """Join by the environment and prove it with one all-reduce."""
    dist.init_process_group("gloo", init_method="env://")
    data = torch.ones(1)
    dist.all_reduce(data)
    sys.stdout.write(f"rank {dist.get_rank()} of {dist.get_world_size()}: {data.item():g}\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
