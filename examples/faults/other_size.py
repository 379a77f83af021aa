"""Row 7: one rank contributes another number of elements.

    python examples/faults/launch.py --world 3 examples/faults/other_size.py
    python examples/faults/launch.py --world 3 examples/faults/other_size.py --elements 4

Larger: an innocent rank may abort (SIGABRT, no Python exception). Smaller: may hang. Verdict:
`shape_mismatch` at L1, culprit 0 by majority (of two ranks: nobody), with all the sizes; the abort
or the errors of others are its consequences.
"""

from __future__ import annotations

from functools import partial

import torch
import torch.distributed as dist
from common import deeper, join, options, subgroup

STEPS = 4


def collective(op: str, elements: int, members: list[int], group: dist.ProcessGroup | None) -> None:
    """One step's communication."""
    data = torch.ones(elements)
    if op == "all_reduce":
        dist.all_reduce(data, group=group)  # <- L1
    elif op == "broadcast":
        dist.broadcast(data, src=members[0], group=group)  # <- L1b
    else:
        dist.all_gather([torch.zeros(elements) for _ in members], data, group=group)  # <- L1g


def main() -> None:
    """Train; in one step one rank has the wrong number of elements."""
    parser = options(__doc__, culprit=0)
    parser.add_argument("--elements", type=int, default=4096, help="of the culprit; others: 1024")
    parser.add_argument("--op", choices=["all_reduce", "broadcast", "all_gather"])
    parser.set_defaults(op="all_reduce")
    chosen = parser.parse_args()
    rank, _ = join()
    group, members = subgroup(chosen.group)
    if rank in members:
        for step in range(STEPS):
            wrong = step == chosen.step and rank == chosen.culprit
            elements = chosen.elements if wrong else 1024
            deeper(chosen.deep, partial(collective, chosen.op, elements, members, group))
    dist.barrier()  # <- L3
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
