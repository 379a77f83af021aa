"""Nobody waits for the work that averages the loss: a note (`unwaited_work`), and no fault.

    torchrun --standalone --nproc-per-node 2 examples/faults/dropped_work.py

The tensor is read while its reduction may still be under way, so what is printed is a sum only by
luck.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from common import join, options

STEPS = 4


def report(loss: torch.Tensor) -> None:
    """Reduce the loss, and drop the Work."""
    dist.all_reduce(loss, async_op=True)  # <- L1


def main() -> None:
    """Train, and report the loss of each step."""
    options(__doc__).parse_args()
    rank, _ = join()
    for _step in range(STEPS):
        loss = torch.ones(1)
        report(loss)
        dist.all_reduce(torch.ones(8))
        if rank == 0:
            print(f"loss {loss.item():g}")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
