"""Row 14: one rank is late every time, and the others wait for it.

    python examples/faults/launch.py --world 3 examples/faults/late.py
    python examples/faults/launch.py --world 2 examples/faults/late.py --pattern pingpong --ms 20

Ends well. Verdict: `straggler` (collectives) or `late_sender` (messages), culprit 1: how late on
average, how long the others waited in total, and the line before which the time went: L1 for an
all_reduce, L1d for DDP's backward, L1p for the send.
"""

from __future__ import annotations

import time

import torch
import torch.distributed as dist
from common import join, options, subgroup
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def allreduce(steps: int, late: float, group: dist.ProcessGroup | None) -> None:
    """A collective per step."""
    for _ in range(steps):
        time.sleep(late)
        dist.all_reduce(torch.ones(8), group=group)  # <- L1


def train(steps: int, late: float, group: dist.ProcessGroup | None) -> None:
    """Training by DDP, whose collectives C++ code issues."""
    model = DistributedDataParallel(nn.Linear(8, 1), process_group=group)
    for _ in range(steps):
        loss = model(torch.ones(4, 8)).sum()
        time.sleep(late)
        loss.backward()  # <- L1d


def pingpong(steps: int, late: float, rank: int, members: list[int]) -> None:
    """Messages to and fro between the first two members."""
    ball = torch.ones(8)
    first, second = members[:2]
    for _ in range(steps):
        if rank == first:
            dist.send(ball, dst=second)
            dist.recv(ball, src=second)
        elif rank == second:
            dist.recv(ball, src=first)
            time.sleep(late)
            dist.send(ball, dst=first)  # <- L1p


def main() -> None:
    """Let the culprit sleep before each of its collectives or messages."""
    parser = options(__doc__, culprit=1)
    parser.add_argument("--pattern", choices=["allreduce", "ddp", "pingpong"], default="allreduce")
    parser.add_argument("--ms", type=float, default=50.0)
    parser.add_argument("--steps", type=int, default=40)
    chosen = parser.parse_args()
    rank, _ = join()
    group, members = subgroup(chosen.group)
    late = chosen.ms / 1000 if rank == chosen.culprit else 0.0
    if rank in members:
        if chosen.pattern == "pingpong":
            pingpong(chosen.steps, late, rank, members)
        else:
            work = train if chosen.pattern == "ddp" else allreduce
            work(chosen.steps, late, group)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
