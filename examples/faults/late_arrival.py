"""Row 23: a rank comes after the others have given up.

    python examples/faults/launch.py --world 3 examples/faults/late_arrival.py --op all_reduce

The time-out is six seconds, the culprit is fourteen seconds in its loader (L1) and then joins what
the others have left (L2; L3 for messages, L4 for `init`). They end by torch's exception
(`--then raise`), catch it and wait for something else (`go`), or leave as if all were well
(`leave`). Verdict: `missing_participant` (`unmatched_recv` for `recv`, `unmatched_send` for `send`,
`rendezvous_incomplete` for `init`), the culprit arrived after the others had given up; nobody else,
and no word of the network.
"""

from __future__ import annotations

import os
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from common import LONG, deeper, options, subgroup

STEPS = 4


def load(seconds: float) -> None:
    """A batch that takes its time."""
    time.sleep(seconds)  # <- L1


def communicate(op: str, rank: int, culprit: int, group: dist.ProcessGroup | None) -> None:
    """One step."""
    data, other = torch.ones(8), 0 if culprit else 1
    if op == "all_reduce":
        dist.all_reduce(data, group=group)  # <- L2
    elif op == "broadcast":
        dist.broadcast(data, src=culprit, group=group)  # <- L2b
    elif op == "barrier":
        dist.barrier(group=group)  # <- L2w
    elif op == "monitored":
        dist.monitored_barrier(group=group, timeout=timedelta(seconds=6))  # <- L2m
    elif op == "new_group":
        dist.new_group(timeout=timedelta(seconds=6))  # <- L2n
    elif op == "recv":  # the others wait for the culprit, who sends too late
        if rank == culprit:
            dist.send(data, dst=other, group=group)  # <- L3
        elif rank == other:
            dist.recv(data, src=culprit, group=group)  # <- L2r
    elif rank == culprit:
        dist.recv(data, src=other, group=group)  # <- L3s
    elif rank == other:
        dist.send(data, dst=culprit, group=group)  # <- L2s


def main() -> None:
    """Train; in one step one rank is late."""
    parser = options(__doc__, culprit=1)
    ops = ["all_reduce", "broadcast", "barrier", "monitored", "new_group", "recv", "send", "init"]
    parser.add_argument("--op", choices=ops, default="all_reduce")
    parser.add_argument("--then", choices=["raise", "go", "leave"], default="raise")
    parser.add_argument("--late", type=float, default=14.0)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    rank = int(os.environ["RANK"])
    if chosen.op == "init" and rank == chosen.culprit:
        load(chosen.late)
    limit = LONG if chosen.op == "new_group" else timedelta(seconds=6)
    dist.init_process_group("gloo", timeout=limit)  # <- L4
    group, members = subgroup(chosen.group)
    if rank not in members:
        return
    for step in range(STEPS):
        if step == chosen.step and rank == chosen.culprit:
            deeper(chosen.deep, lambda: load(chosen.late))
        try:
            communicate(chosen.op, rank, chosen.culprit, group)
        except RuntimeError:
            if chosen.then == "raise" or rank == chosen.culprit:
                raise
            if chosen.then == "leave":
                os._exit(0)
            time.sleep(600)


if __name__ == "__main__":
    main()
