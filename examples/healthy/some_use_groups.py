"""Groups that all ranks make and only some use.

    python examples/faults/launch.py --world 4 examples/healthy/some_use_groups.py

Legal: `disttrace diagnose` finds no error and no warning. Other ranks have no part in them; one
group is used by nobody, and members use them unequally often in different steps.
"""

from __future__ import annotations

import torch
import torch.distributed as dist

STEPS = 4


def main() -> None:
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    low = dist.new_group([0, 1])
    high = dist.new_group(list(range(2, size)))
    dist.new_group([0, size - 1])
    for step in range(STEPS):
        if rank in (0, 1):
            dist.all_reduce(torch.ones(8), group=low)
        elif step == 2:
            dist.broadcast(torch.ones(8), src=2, group=high)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
