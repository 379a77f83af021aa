"""Row 8: one rank joins an exchange with another argument; some of these return silently.

    python examples/faults/launch.py --world 3 examples/faults/other_arguments.py --what reduce_op

Verdict, also when every rank returned and the program ends well, with culprit 1 by majority (of two
ranks, and of the two ends of a message: nobody):
`reduce_op`: SUM against MAX, returns silently: `reduce_op_mismatch` at L1.
`root`: broadcast from 0 against from 1: `root_mismatch` at L2.
`dtype`: float32 against float64, hangs, aborts or returns: `dtype_mismatch` at L3.
`same_size_dtype`: float32 against int32, returns silently: `dtype_mismatch` at L3.
`message`: send of 8 elements (L4), recv of 16 (L5): `size_mismatch`.
"""

from __future__ import annotations

from functools import partial

import torch
import torch.distributed as dist
from common import deeper, join, options, subgroup

STEPS = 4
KEPT = torch.ones(8)
"""Alive to the end: torch 2.5 may hang in destroying a group when its tensor went before."""


def step(what: str, odd: bool, members: list[int], group: dist.ProcessGroup | None) -> None:
    """One step's communication; the odd rank's differs in one argument."""
    if what == "reduce_op":
        op = dist.ReduceOp.MAX if odd else dist.ReduceOp.SUM
        dist.all_reduce(KEPT, op=op, group=group)  # <- L1
    elif what == "root":
        dist.broadcast(torch.ones(8), src=members[1 if odd else 0], group=group)  # <- L2
    elif what in ("dtype", "same_size_dtype"):
        other = torch.float64 if what == "dtype" else torch.int32
        data = torch.ones(8, dtype=other if odd else torch.float32)
        dist.all_reduce(data, group=group)  # <- L3
    elif dist.get_rank() == members[0]:
        dist.send(torch.ones(8), dst=members[1], group=group)  # <- L4
    elif dist.get_rank() == members[1]:
        elements = 16 if odd else 8
        dist.recv(torch.zeros(elements), src=members[0], group=group)  # <- L5


def main() -> None:
    """Train; in one step one rank passes something else."""
    parser = options(__doc__, culprit=1)
    parser.add_argument(
        "--what",
        choices=["reduce_op", "root", "dtype", "same_size_dtype", "message"],
        default="reduce_op",
    )
    chosen = parser.parse_args()
    rank, _ = join()
    group, members = subgroup(chosen.group)
    if rank in members:
        for number in range(STEPS):
            odd = number == chosen.step and rank == chosen.culprit
            deeper(chosen.deep, partial(step, chosen.what, odd, members, group))
    dist.barrier()  # <- L6
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
