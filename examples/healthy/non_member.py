"""A process that calls with the group it was given although it is no member.

    python examples/faults/launch.py --world 3 examples/healthy/non_member.py

Legal: `disttrace diagnose` finds no error and no warning. torch warns and does nothing, and so it
is no error.
"""

from __future__ import annotations

import torch
import torch.distributed as dist


def main() -> None:
    dist.init_process_group("gloo")
    group = dist.new_group([0, 1])
    for _ in range(3):
        dist.all_reduce(torch.ones(8), group=group)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
