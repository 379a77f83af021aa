"""Row 10: a key is awaited in a store that nobody sets.

    python examples/faults/launch.py --world 2 examples/faults/store_key.py

Rank 0 waits at L1 for the key of rank 1, which raises at L2 before it sets it. Ends by time-out
(`--timeout`, else 30 minutes). Verdict: `process_failed`, culprit 1, with its exception and L2; the
awaited key is its consequence. `--how sleep`: rank 1 stands at L3 and sets nothing:
`store_key_missing`. `--how other_key`: it set "app/Ready/1" instead and waits in the barrier (L4):
`store_key_missing` that names the nearest key. `--how order`: rank 1 waits for all in the barrier
(L4) before it would set the key: `store_key_missing`, which says that all others wait there. `--how
queue` (torch 2.13 and later): rank 0 pops three times (L5) what was pushed twice:
`store_key_missing`, with how often each was done.
"""

from __future__ import annotations

import time
from datetime import timedelta

import torch
import torch.distributed as dist
from common import LONG, deeper, options

PUSHES = 2


def prepare() -> bytes:
    """Work that must be done before the others may go on."""
    raise ValueError("the shard is empty")  # <- L2


def announce(store: dist.Store, how: str, rank: int) -> None:
    """What the culprit does instead of setting its key."""
    if how == "raise":
        store.set(f"ready/{rank}", prepare())
    if how == "sleep":
        time.sleep(600)  # <- L3
    if how == "other_key":
        store.set(f"Ready/{rank}", b"1")
    if how == "queue":
        for _ in range(PUSHES):
            store.queue_push("work", b"1")


def take_all(store: dist.Store) -> None:
    """One item more than there will ever be."""
    for _ in range(PUSHES + 1):
        store.queue_pop("work")  # <- L5


def main() -> None:
    """Join through a store, and use it for signals of our own."""
    parser = options(__doc__, culprit=1)
    ways = ["raise", "sleep", "other_key", "order", "queue"]
    parser.add_argument("--how", choices=ways, default="raise")
    parser.add_argument("--timeout", type=float, default=LONG.total_seconds())
    chosen = parser.parse_args()
    base, rank, size = next(dist.rendezvous("env://", timeout=LONG))
    dist.init_process_group("gloo", store=base, rank=rank, world_size=size, timeout=LONG)
    base.set_timeout(timedelta(seconds=chosen.timeout))
    store = dist.PrefixStore("app", base)
    dist.all_reduce(torch.ones(8))
    if rank == 0 and chosen.how == "queue":
        take_all(store)
    elif rank == 0:
        store.get(f"ready/{chosen.culprit}")  # <- L1
    elif rank == chosen.culprit:
        deeper(chosen.deep, lambda: announce(store, chosen.how, rank))
    dist.barrier()  # <- L4
    store.set(f"ready/{rank}", b"1")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
