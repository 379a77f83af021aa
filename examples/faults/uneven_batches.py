"""Row 3: one rank has one batch less under DDP.

    python examples/faults/launch.py --world 3 examples/faults/uneven_batches.py

Hangs or ends in errors. Verdict: `missing_participant` [1] at the reducer's all_reduce, which C++
code issued from `backward` (L2), where rank 1 sleeps (L1) or has ended cleanly (`--then end`: a
clean end is no failure); `op_mismatch` where it went on (`--then barrier`: L1w), with culprit 1, of
two ranks nobody. Hint: uneven inputs, `join()` or drop_last.
"""

from __future__ import annotations

import time

import torch
import torch.distributed as dist
from common import join, options, subgroup
from torch import nn
from torch.nn.parallel import DistributedDataParallel

STEPS = 5


def train(batches: int, group: dist.ProcessGroup | None) -> None:
    """Train on so many batches."""
    model = DistributedDataParallel(nn.Linear(8, 1), process_group=group)
    for _ in range(batches):
        loss = model(torch.ones(4, 8)).sum()
        loss.backward()  # <- L2


def main() -> None:
    """Train on a shard that is too small on one rank."""
    parser = options(__doc__, culprit=1)
    parser.add_argument("--then", choices=["sleep", "end", "barrier"], default="sleep")
    chosen = parser.parse_args()
    rank, _ = join()
    group, members = subgroup(chosen.group)
    if rank in members:
        train(STEPS - (rank == chosen.culprit), group)
    if rank == chosen.culprit and chosen.then == "sleep":
        time.sleep(600)  # <- L1
    if chosen.then == "barrier" and rank in members:
        dist.barrier(group=group)  # <- L1w
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
