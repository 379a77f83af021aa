"""Row 16: two faults at once: a reduce-op difference that returned, and later a missing rank.

    python examples/faults/launch.py --world 3 examples/faults/two_faults.py

Hangs. Verdict: both findings: `reduce_op_mismatch` at L1, culprit 1, which returned and explains
nothing else; and `missing_participant`: rank 2 stands at L2, the others wait at L3.
"""

from __future__ import annotations

import time

import torch
import torch.distributed as dist
from common import deeper, join, options, subgroup

STEPS = 5


def main() -> None:
    """Train; one rank reduces wrongly in one step, another does not come to a later one."""
    parser = options(__doc__, culprit=1)
    parser.add_argument("--missing", type=int, default=2)
    chosen = parser.parse_args()
    rank, _ = join()
    group, members = subgroup(chosen.group)
    if rank in members:
        for step in range(STEPS):
            op = dist.ReduceOp.SUM
            if step == 1 and rank == chosen.culprit:
                op = dist.ReduceOp.MAX
            dist.all_reduce(torch.ones(8), op=op, group=group)  # <- L1
        if rank == chosen.missing:
            deeper(chosen.deep, lambda: time.sleep(600))  # <- L2
        dist.broadcast(torch.ones(8), src=members[0], group=group)  # <- L3
    dist.barrier()  # <- L4
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
