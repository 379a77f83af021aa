"""Uneven but legal use of the store.

    python examples/faults/launch.py --world 3 examples/healthy/uneven_store.py

Legal: `disttrace diagnose` finds no error and no warning. Some ranks set keys that others wait for,
count them, poll for them, try one that never comes and catch the time-out, and delete what they
made.
"""

from __future__ import annotations

import time
from datetime import timedelta

import torch
import torch.distributed as dist


def leader(store: dist.Store, size: int) -> None:
    """Publish the plan late, wait until all others have counted themselves, and tidy up."""
    time.sleep(0.3)
    store.set("plan", b"go")
    while store.add("ready", 0) < size - 1:
        time.sleep(0.02)
    store.delete_key("plan")


def follower(store: dist.Store) -> None:
    """Look whether the plan is there, wait for it, count in; optional parts may be missing."""
    while not store.check(["plan"]):
        time.sleep(0.02)
    store.wait(["plan"], timedelta(seconds=30))
    assert store.get("plan") == b"go"
    try:
        store.wait(["optional"], timedelta(seconds=0.2))
    except dist.DistError:
        store.compare_set("fallback", "", "1")
    store.add("ready", 1)


def main() -> None:
    base, rank, size = next(dist.rendezvous("env://", timeout=timedelta(seconds=60)))
    dist.init_process_group("gloo", store=base, rank=rank, world_size=size)
    store = dist.PrefixStore("app", base)
    if rank == 0:
        leader(store, size)
    else:
        follower(store)
    dist.all_reduce(torch.ones(4))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
