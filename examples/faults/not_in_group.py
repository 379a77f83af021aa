"""Row 13: in a subgroup the group rank is given where the global rank is wanted.

    python examples/faults/launch.py --world 4 examples/faults/not_in_group.py

Ends with errors. Verdict: `not_in_group` at L1: root 0 is no member of [2, 3], culprits 2 and 3,
which both pass it (with `--culprit 3`: only that one; the other waits at L1, a consequence); hint:
global rank against group rank; the exceptions and the others' wait at L2 are its consequences.
`--op message`: the same for the destination of a send (L1s) and the source of a receive (L1r).
`--op itself`: in a line of all ranks the culprit takes itself for the next one (L1i), and no group
rank can be meant; certain, and the hint does not speak of any.
"""

from __future__ import annotations

from functools import partial

import torch
import torch.distributed as dist
from common import deeper, join, options, subgroup


def communicate(op: str, wrong: bool, rank: int, members: list[int], group: object) -> None:
    """One step; where it is wrong, group ranks stand for global ones."""
    data = torch.ones(8)
    first, second = (0, 1) if wrong else (members[0], members[1])
    if op == "itself":
        if rank != members[0]:
            dist.recv(data, src=rank - 1)
        if rank != members[-1]:
            dist.send(data, dst=rank if wrong else rank + 1)  # <- L1i
        return
    if op == "broadcast":
        dist.broadcast(data, src=first, group=group)  # <- L1
    elif rank == members[0]:
        dist.send(data, dst=second, group=group)  # <- L1s
    elif rank == members[1]:
        dist.recv(data, src=first, group=group)  # <- L1r


def main() -> None:
    """Some right steps, then a wrong one."""
    parser = options(__doc__, culprit=-1)
    parser.add_argument("--op", choices=["broadcast", "message", "itself"], default="broadcast")
    chosen = parser.parse_args()
    rank, size = join()
    usual = [] if chosen.op == "itself" else [size - 2, size - 1]
    group, members = subgroup(chosen.group or usual)
    if rank in members:
        for step in range(chosen.step + 1):
            wrong = step == chosen.step and chosen.culprit in (-1, rank)
            deeper(chosen.deep, partial(communicate, chosen.op, wrong, rank, members, group))
    dist.barrier()  # <- L2
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
