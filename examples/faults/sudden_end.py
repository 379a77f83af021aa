"""Row 11: a rank ends in mid-run.

    python examples/faults/launch.py --world 3 examples/faults/sudden_end.py --how raise

The others see "connection closed by peer", or nothing and hang, at L2 (with `--op recv`: rank 0, at
L2r). Verdict: `process_failed`, culprit 1: how it ended as far as that can be known, when, its last
operation, and L1; all else is a consequence. `--also 2`: both fail at the same line for the same
reason, which is one finding with both as culprits. `--how sys_exit` ends with code 3, `segfault`
in C, `abort` by SIGABRT, `memory` by asking for too much.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

import torch
import torch.distributed as dist
from common import deeper, join, options, ranks, subgroup

STEPS = 4


def end(how: str) -> None:
    """Leave without the others."""
    if how == "raise":
        raise ValueError("the loss is not a number")  # <- L1
    if how == "sys_exit":
        sys.exit(3)  # <- L1x
    if how == "os_exit":
        os._exit(4)  # <- L1o
    if how == "sigkill":
        os.kill(os.getpid(), signal.SIGKILL)  # <- L1k
    if how == "segfault":
        ctypes.string_at(0)  # <- L1s
    if how == "abort":
        os.abort()  # <- L1a
    torch.empty(1 << 60)  # <- L1m


def communicate(op: str, rank: int, members: list[int], group: dist.ProcessGroup | None) -> None:
    """One step: all reduce, or the first one receives from the others in turn."""
    data = torch.ones(8)
    if op == "all_reduce":
        dist.all_reduce(data, group=group)  # <- L2
    elif rank == members[0]:
        for source in members[1:]:
            dist.recv(data, src=source, group=group)  # <- L2r
    else:
        dist.send(data, dst=members[0], group=group)


def main() -> None:
    """Train; in one step a rank or two end."""
    parser = options(__doc__, culprit=1)
    parser.add_argument(
        "--how",
        choices=["raise", "sys_exit", "os_exit", "sigkill", "segfault", "abort", "memory"],
        default="raise",
    )
    parser.add_argument("--op", choices=["all_reduce", "recv"], default="all_reduce")
    parser.add_argument("--also", type=ranks, default=[], help="further culprits")
    chosen = parser.parse_args()
    rank, _ = join()
    group, members = subgroup(chosen.group)
    if rank in members:
        for step in range(STEPS):
            if step == chosen.step and rank in [chosen.culprit, *chosen.also]:
                deeper(chosen.deep, lambda: end(chosen.how))
            communicate(chosen.op, rank, members, group)
    dist.barrier()  # <- L3
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
