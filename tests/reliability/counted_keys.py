"""A program that counts its store's keys while it stalls: what it counts is what it put there.

Run as each rank of a job over several hosts, it waits for the last rank by asking its store again
and again, with everything by which a store can be asked, and prints what it was told, once each.
"""

from __future__ import annotations

import os
import sys
import time
from datetime import timedelta

import torch.distributed as dist

STALL_S = float(sys.argv[1])


def main() -> None:
    """Prints one line of everything that was ever answered."""
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store = dist.TCPStore(
        os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), world, rank == 0,
        timedelta(seconds=120),
        use_libuv=os.environ.get("USE_LIBUV", "1") == "1",
    )  # fmt: skip
    if rank == world - 1:
        time.sleep(STALL_S)
        store.set("done", "1")
        time.sleep(2)
        return
    counted, polls, until = set(), 0, time.monotonic() + 120
    while time.monotonic() < until:
        listed = tuple(sorted(store.list_keys())) if hasattr(store, "list_keys") else ()
        told = (store.num_keys(), listed, store.delete_key("none"), store.check(["none"]))
        if store.check(["done"]):
            break  # it may have come in the middle
        counted.add(told)
        polls += 1
        time.sleep(0.005)
    last = store.num_keys()
    print("counted", sorted(counted), "and", last, flush=True)
    print("often" if polls > 200 else f"only {polls}", flush=True)
    time.sleep(2 + rank)  # who serves the store is there for the others
    if rank == 0:
        time.sleep(world)


main()
