"""Row 6: groups used in another order by each of their members.

    python examples/faults/launch.py --world 2 examples/faults/opposite_order.py
    python examples/faults/launch.py --world 3 examples/faults/opposite_order.py --ring

Hangs. Verdict: one `deadlock` over the groups, with the order in which each rank uses them (L1,
then L2); nobody is missing and nobody is blamed. `--ring` takes the groups of neighbours (0,1),
(1,2), (2,0), each rank first in its own; other ranks wait in the last barrier (L3), a consequence.
`--short` uses one of the groups only, in which the second of the pair leaves out a call (L4), long
before it meets the barrier: no matter of an order, and the hint gives the calls of each side.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from common import deeper, join, options, ranks


def in_order(groups: list[dist.ProcessGroup]) -> None:
    """Reduce in one group, then in the other."""
    first, second = groups
    dist.all_reduce(torch.ones(8), group=first)  # <- L1
    dist.all_reduce(torch.ones(8), group=second)  # <- L2


def main() -> None:
    """Some steps in the same order, then in opposite ones."""
    parser = options(__doc__)
    parser.add_argument("--pair", type=ranks, default=[0, 1])
    parser.add_argument("--ring", action="store_true", help="a cycle over all ranks")
    parser.add_argument("--short", action="store_true", help="leave one call out instead")
    chosen = parser.parse_args()
    rank, size = join()
    if chosen.ring:
        made = [dist.new_group([one, (one + 1) % size]) for one in range(size)]
        mine = [made[rank], made[rank - 1]]
        right = sorted(mine, key=made.index)
    else:
        mine = right = [dist.new_group(chosen.pair) for _ in range(2)]
        if rank == chosen.pair[1] and not chosen.short:
            mine = mine[::-1]
    if chosen.short and rank in chosen.pair:
        for step in range(chosen.step + 2):
            if step or rank != chosen.pair[1]:
                dist.all_reduce(torch.ones(8), group=mine[0])  # <- L4
    elif chosen.ring or rank in chosen.pair:
        for _ in range(chosen.step):
            in_order(right)
        deeper(chosen.deep, lambda: in_order(mine))
    dist.barrier()  # <- L3
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
