"""Row 12: the processes do not make the same groups in the same order.

    python examples/faults/launch.py --world 4 examples/faults/new_group_wrong.py

Every process must call `new_group` for every group. Hangs. Verdict: `group_mismatch`, by position
in the sequence of calls:
`members_only`: 0 and 1 make [0, 1] (L1), then all make a group of all (L2): who passed which ranks;
of four ranks nobody is blamed.
`own_ranks`: each process passes ranks of its own (L3): nobody is blamed.
`skipped`: rank 1 does not call (L4) and goes on to an all_reduce (L5): culprit 1.
`asleep`: rank 1 sleeps before the call (L6), so it may still come: `missing_participant` 1.
`order`: all make two groups, rank 1 the other way round (L7, L8): culprit 1.
"""

from __future__ import annotations

import time

import torch
import torch.distributed as dist
from common import deeper, join, options


def members_only(rank: int, size: int) -> None:
    """A group made by its members only, and then one made by all."""
    if rank in (0, 1):
        dist.new_group([0, 1])  # <- L1
    everybody = dist.new_group(list(range(size)))  # <- L2
    dist.all_reduce(torch.ones(8), group=everybody)  # <- L2a


def own_ranks(rank: int, size: int) -> None:
    """Each process means its own neighbourhood."""
    group = dist.new_group(sorted({rank, (rank + 1) % size}))  # <- L3
    dist.all_reduce(torch.ones(8), group=group)  # <- L3a


def one_differs(how: str, rank: int, size: int, culprit: int) -> None:
    """One process skips a call, comes late to it, or makes two calls in the other order."""
    if how == "order":
        first, second = [0, 1], list(range(1, size))
        if rank == culprit:
            first, second = second, first
        dist.new_group(first)  # <- L7
        dist.new_group(second)  # <- L8
    elif rank != culprit:
        dist.new_group([0, 1])  # <- L4
    elif how == "asleep":
        time.sleep(600)  # <- L6
    dist.all_reduce(torch.ones(8))  # <- L5


def main() -> None:
    """One good group, then the wrong ones."""
    parser = options(__doc__, culprit=1)
    parser.add_argument(
        "--how",
        choices=["members_only", "own_ranks", "skipped", "asleep", "order"],
        default="members_only",
    )
    chosen = parser.parse_args()
    rank, size = join()
    for _ in range(chosen.step):
        dist.all_reduce(torch.ones(8), group=dist.new_group(list(range(size))))
    if chosen.how == "members_only":
        deeper(chosen.deep, lambda: members_only(rank, size))
    elif chosen.how == "own_ranks":
        deeper(chosen.deep, lambda: own_ranks(rank, size))
    else:
        deeper(chosen.deep, lambda: one_differs(chosen.how, rank, size, chosen.culprit))
    dist.barrier()  # <- L9
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
