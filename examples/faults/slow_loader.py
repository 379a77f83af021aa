"""Row 2: one rank does not come to a collective, because it is somewhere else.

    python examples/faults/launch.py --world 3 examples/faults/slow_loader.py --culprit 2

Hangs. Verdict: `missing_participant`: rank 2; it stands at L1 in its loader, outside communication;
the others wait at L2 since then. `--where` puts it elsewhere: a busy loop of Python (L1b, L1c), a
clean end (`exit`: no failure), or after its own `destroy_process_group` (L1d). With `--op unwaited`
nobody waits for the last step (L2u) but in the destruction of the group (L2v). Ranks outside the
subgroup wait in the last barrier (L3): a consequence.
"""

from __future__ import annotations

import os
import time

import torch
import torch.distributed as dist
from common import deeper, join, options, subgroup

STEPS = 4


def load(where: str) -> torch.Tensor:
    """The next batch, which never comes."""
    if where == "exit":
        raise SystemExit(0)
    if where == "destroy":
        dist.destroy_process_group()
        time.sleep(600)  # <- L1d
    deadline = time.monotonic() + 600
    while where == "loop" and time.monotonic() < deadline:  # <- L1c
        os.getpid()  # <- L1b
    time.sleep(600)  # <- L1
    return torch.ones(8)


def collective(op: str, members: list[int], group: dist.ProcessGroup | None) -> dist.Work | None:
    """One step's communication; of an asynchronous one its work."""
    data = torch.ones(8)
    if op == "all_reduce":
        dist.all_reduce(data, group=group)  # <- L2
    elif op == "broadcast":
        dist.broadcast(data, src=members[0], group=group)  # <- L2b
    elif op == "all_gather":
        dist.all_gather([torch.ones(8) for _ in members], data, group=group)  # <- L2g
    elif op == "barrier":
        dist.barrier(group=group)  # <- L2w
    elif op == "unwaited":
        return dist.all_reduce(data, group=group, async_op=True)  # <- L2u
    else:
        work = dist.all_reduce(data, group=group, async_op=True)  # <- L2i
        work.wait()  # <- L2a
    return None


def main() -> None:
    """Train; in one step one rank loads for ever."""
    parser = options(__doc__, culprit=2)
    parser.add_argument("--where", choices=["sleep", "loop", "exit", "destroy"], default="sleep")
    parser.add_argument(
        "--op",
        choices=["all_reduce", "broadcast", "all_gather", "barrier", "async", "unwaited"],
        default="all_reduce",
    )
    chosen = parser.parse_args()
    rank, _ = join()
    group, members = subgroup(chosen.group)
    works = []
    if rank in members:
        for step in range(STEPS):
            if step == chosen.step and rank == chosen.culprit:
                deeper(chosen.deep, lambda: load(chosen.where))
            works.append(collective(chosen.op, members, group))
    if chosen.op != "unwaited":
        dist.barrier()  # <- L3
    dist.destroy_process_group()  # <- L2v


if __name__ == "__main__":
    main()
