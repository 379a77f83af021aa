"""Row 27: waits in a store that hold up nobody, beside a rank that does not come.

    python examples/faults/launch.py --world 3 examples/faults/store_polling.py --how poll

`--how poll`: rank 0 asks for a key again and again with a short time-out that it catches (L3),
while ranks 1 and 2 train; `thread`: every rank has a daemon thread that waits for "shutdown" all
day (L4). The culprit is in its loader (L1), the others in an all_reduce (L2). Verdict:
`missing_participant`, the culprit, and no word of the keys. With `--healthy` it comes after all:
nothing is wrong. `--how shared`: that thread waits over the connection of the default group's
store, so the next `new_group` (L5) stands behind it: `store_key_missing` of the thread's key.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from common import LONG, join, options

STEPS = 4


def poll(store: dist.Store, until: float) -> None:
    """Look for a message, every now and then."""
    while time.monotonic() < until:
        with contextlib.suppress(RuntimeError):
            store.wait(["message"], timedelta(milliseconds=50))  # <- L3
        time.sleep(0.02)


def listen(store: dist.Store) -> None:
    """Wait for the end of the day."""
    with contextlib.suppress(RuntimeError):
        store.wait(["shutdown"], timedelta(hours=1))  # <- L4


def main() -> None:
    """Train beside such waits; in one step one rank loads for ever."""
    parser = options(__doc__, culprit=1)
    parser.add_argument("--how", choices=["poll", "thread", "shared"], default="poll")
    parser.add_argument("--healthy", action="store_true")
    chosen = parser.parse_args()
    rank, world = join()
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    own = dist.TCPStore(address, port, None, False, LONG)
    seconds = 15.0 if chosen.healthy else 600.0
    members = list(range(1, world)) if chosen.how == "poll" else list(range(world))
    group = dist.new_group(members)
    if chosen.how == "shared":
        own = dist.distributed_c10d._get_default_store()
    listener = threading.Thread(target=listen, args=(own,), daemon=True)
    if chosen.how != "poll":
        listener.start()
    if chosen.how == "shared":
        time.sleep(1)  # until it waits
        dist.new_group(members)  # <- L5
    if rank not in members:
        poll(own, time.monotonic() + seconds)
        return
    for step in range(STEPS):
        if step == chosen.step and rank == chosen.culprit:
            time.sleep(seconds / 3 if chosen.healthy else seconds)  # <- L1
        dist.all_reduce(torch.ones(8), group=group)  # <- L2
    if chosen.how == "thread":
        dist.barrier(group=group)
        # Over another connection: in its own one the thread waits. And before the end, for torch
        # aborts where a thread is in C++ when the interpreter ends.
        own.clone().set("shutdown", "")
        listener.join()
        dist.barrier(group=group)  # rank 0 serves the key until everybody has it


if __name__ == "__main__":
    main()
