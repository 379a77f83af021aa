"""Asynchronous work that is waited for late, and out of order.

    python examples/faults/launch.py --world 3 examples/healthy/waited_late.py

Legal: `disttrace diagnose` finds no error and no warning. Work under way while its rank does
something else blocks nobody; all of it is waited for in the end.
"""

from __future__ import annotations

import time

import torch
import torch.distributed as dist

STEPS = 4


def main() -> None:
    dist.init_process_group("gloo")
    tensors = [torch.ones(64) for _ in range(STEPS)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    time.sleep(0.2)
    dist.barrier()
    for work in reversed(works):
        work.wait()
    work = dist.all_reduce(tensors[0], async_op=True)
    work.get_future().wait()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
