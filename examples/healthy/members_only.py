"""Groups made by their members only, with `use_local_synchronization=True`.

    python examples/faults/launch.py --world 4 examples/healthy/members_only.py

Legal: `disttrace diagnose` finds no error and no warning. Not everybody calls `new_group`, which is
what this argument permits.
"""

from __future__ import annotations

import torch
import torch.distributed as dist


def main() -> None:
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    if rank != size - 1:
        members = list(range(size - 1))
        group = dist.new_group(members, use_local_synchronization=True)
        for _ in range(3):
            dist.all_reduce(torch.ones(8), group=group)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
