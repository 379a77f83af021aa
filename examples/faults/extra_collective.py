"""Row 1: one rank makes an extra collective, and all go on to the next all_reduce.

    python examples/faults/launch.py --world 3 examples/faults/extra_collective.py

Hangs, or aborts an innocent rank. Verdict: `op_mismatch` at the sequence number of the extra call:
rank 0 all_gather at L1, the others all_reduce at L2; culprit 0 as the odd one (of two ranks:
nobody); the hint speaks of a collective under a rank condition. With `--extra all_reduce`, which is
just like the others, nothing differs until the end, where rank 0 waits alone at L2 while the others
are at L3 (`--then sleep`) or have ended (`--then end`): `missing_participant`, both sides, no
culprit, hint "one more call at L1".
"""

from __future__ import annotations

import time

import torch
import torch.distributed as dist
from common import deeper, join, options, subgroup

STEPS = 4


def evaluate(extra: str, members: list[int], group: dist.ProcessGroup | None) -> None:
    """What the author meant for one rank only, although it is a collective."""
    value = torch.ones(8)
    if extra == "all_gather":
        dist.all_gather([torch.zeros(8) for _ in members], value, group=group)  # <- L1
    elif extra == "all_reduce":
        dist.all_reduce(value, group=group)  # <- L1s
    elif extra == "broadcast":
        dist.broadcast(value, src=members[0], group=group)  # <- L1b
    else:
        dist.barrier(group=group)  # <- L1w


def main() -> None:
    """Train; in one step one rank evaluates."""
    parser = options(__doc__, culprit=0)
    parser.add_argument(
        "--extra",
        choices=["all_gather", "all_reduce", "broadcast", "barrier"],
        default="all_gather",
    )
    parser.add_argument("--then", choices=["sleep", "end"], default="sleep")
    chosen = parser.parse_args()
    rank, _ = join()
    group, members = subgroup(chosen.group)
    if rank in members:
        for step in range(STEPS):
            if step == chosen.step and rank == chosen.culprit:
                deeper(chosen.deep, lambda: evaluate(chosen.extra, members, group))
            dist.all_reduce(torch.ones(8), group=group)  # <- L2
        if chosen.then == "sleep":
            time.sleep(600)  # <- L3
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
