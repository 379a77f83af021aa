"""Row 26: the process that serves the store ends while others still need it.

    python examples/faults/launch.py --world 3 examples/faults/store_server.py

Rank 0 serves the store and ends early: well (`--how end`), by `os._exit(0)` (`leave`) or by an
exception (`raise`, L1). The others go on without it in a group of their own and then make another
one (L2), or read a key (`--op key`, L3): both need the store. Verdict: `process_failed` over those
that failed; culprit 0 only where it failed itself, else nobody, and the sentence names the store's
server that has ended. Never "nothing is wrong".
"""

from __future__ import annotations

import os
import time

import torch
import torch.distributed as dist
from common import join, options


def end(how: str) -> None:
    """Rank 0 has nothing more to do."""
    if how == "raise":
        raise ValueError("nothing left to serve")  # <- L1
    if how == "leave":
        os._exit(0)


def main() -> None:
    """All reduce among the others, after which they need the store."""
    parser = options(__doc__)
    parser.add_argument("--how", choices=["end", "leave", "raise"], default="end")
    parser.add_argument("--op", choices=["group", "key"], default="group")
    chosen = parser.parse_args()
    rank, world = join()
    others = dist.new_group(list(range(1, world)))
    dist.all_reduce(torch.ones(8))
    if rank == 0:
        end(chosen.how)
        return
    time.sleep(4)
    dist.all_reduce(torch.ones(8), group=others)
    if chosen.op == "group":
        dist.new_group(list(range(1, world)), use_local_synchronization=True)  # <- L2
    else:
        dist.distributed_c10d._get_default_store().get("epoch")  # <- L3
    dist.all_reduce(torch.ones(8), group=others)


if __name__ == "__main__":
    main()
