"""Four processes on one host: world size, rank and local rank.

    torchrun --standalone --nproc-per-node 4 examples/four_ranks.py

With DISTTRACE=1 in front, `disttrace view` heads its report with one host, one agent and four
workers, ranks 0 to 3 with local ranks 0 to 3, and shows one `all_gather` in which each rank passes
its own local rank.
"""

from __future__ import annotations

import os
import sys

import torch
import torch.distributed as dist


def main() -> None:
    """Everybody tells everybody its local rank."""
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    local_rank = int(os.environ["LOCAL_RANK"])
    seen = [torch.zeros(1, dtype=torch.int64) for _ in range(size)]
    dist.all_gather(seen, torch.tensor([local_rank]))
    sys.stdout.write(
        f"world size {size}, rank {rank}, local rank {local_rank}, "
        f"all local ranks {[int(one) for one in seen]}\n"
    )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
