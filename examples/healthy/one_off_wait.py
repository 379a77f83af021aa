"""One long wait at the start, as for a checkpoint that one rank loads.

    python examples/faults/launch.py --world 3 examples/healthy/one_off_wait.py

Legal: `disttrace diagnose` finds no error and no warning. Once is no habit: no straggler.
"""

from __future__ import annotations

import time

import torch
import torch.distributed as dist


def main() -> None:
    dist.init_process_group("gloo")
    if dist.get_rank() == 1:
        time.sleep(1.5)
    dist.barrier()
    for _ in range(20):
        dist.all_reduce(torch.ones(8))
    if dist.get_rank() == 0:
        time.sleep(0.5)
    dist.broadcast(torch.ones(8), src=0)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
