"""Row 28: a call raises on one rank alone, which catches that and goes on.

    python examples/faults/launch.py --world 3 examples/faults/swallowed.py

Hangs, or aborts an innocent rank. Verdict: `op_mismatch`, culprit 1: it is in a barrier (L2) while
the others are in the call that raised on it (L1); the finding says so, with the exception. `--what
scatter`: the root's list is short, which torch refuses on issue (L1s). `--then sleep`: it is in no
collective any more (L3): `missing_participant`, with the same exception. `--what batch`: its own
code raised, and no call (L0); in the handler (`--then handler`: L4) it is told what it handles.
"""

from __future__ import annotations

import threading
import time
from functools import partial

import torch
import torch.distributed as dist
from common import deeper, join, options, subgroup


def share(what: str, wrong: bool, rank: int, root: int, members: list[int], group: object) -> None:
    """One exchange, for which a rank may have prepared the wrong thing."""
    size = len(members)
    if what == "batch" and wrong:
        raise ValueError("bad batch")  # <- L0
    if what != "scatter":
        statistics = threading.Lock() if wrong else {"loss": 1.0}
        dist.all_gather_object([None] * size, statistics, group=group)  # <- L1
    else:
        shards = [torch.ones(8) for _ in range(size - wrong)] if rank == root else None
        dist.scatter(torch.empty(8), shards, src=root, group=group)  # <- L1s


def main() -> None:
    """Some right steps, then a wrong one, whose exception is only logged."""
    parser = options(__doc__)
    parser.add_argument("--what", choices=["objects", "scatter", "batch"], default="objects")
    parser.add_argument("--then", choices=["barrier", "sleep", "handler"], default="barrier")
    chosen = parser.parse_args()
    rank, _ = join()
    group, members = subgroup(chosen.group)
    if rank in members:
        for step in range(chosen.step + 1):
            wrong = step == chosen.step and rank == chosen.culprit
            call = partial(share, chosen.what, wrong, rank, chosen.culprit, members, group)
            try:
                deeper(chosen.deep, call)
            except Exception as error:
                print(f"rank {rank} goes on: {error}", flush=True)
                if chosen.then == "sleep":
                    time.sleep(600)  # <- L3
                elif chosen.then == "handler":
                    dist.barrier(group=group)  # <- L4
        dist.barrier(group=group)  # <- L2
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
