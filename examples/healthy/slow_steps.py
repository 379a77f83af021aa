"""Steps that are slow for good reasons: nothing is wrong, however long the others wait.

    python examples/faults/launch.py --world 3 examples/healthy/slow_steps.py --what checkpoint

`--what`: rank 0 writes a `checkpoint` every third step; every rank is in the `compile` of its first
step, one longer than the other; the `loader` of rank 1 starts slowly; a `listener` thread takes
messages of rank 0, and a `watcher` thread waits for a key of a store, until the job is over. With
`DISTTRACE=1` there is at most one note of who waits, which is taken back.
"""

from __future__ import annotations

import argparse
import threading
import time

import torch
import torch.distributed as dist

STEPS = 7


class Listener:
    """A thread that waits for rank 0's last word."""

    def __init__(self, what: str) -> None:
        self.rank, self.what = dist.get_rank(), what
        if what == "listener":
            self.group = dist.new_group()
        else:
            self.store = dist.TCPStore("127.0.0.1", 0, None, True) if self.rank == 0 else None
            port: list[object] = [self.store.port if self.store is not None else None]
            dist.broadcast_object_list(port)
            if self.store is None:
                self.store = dist.TCPStore("127.0.0.1", int(str(port[0])), None, False)
        self.thread = threading.Thread(target=self.wait)
        self.thread.start()

    def wait(self) -> None:
        """All day."""
        if self.what == "watcher":
            assert self.store is not None
            self.store.get("over")
        elif self.rank:
            dist.recv(torch.zeros(1), src=0, group=self.group)

    def end(self) -> None:
        """Say it, and hear it."""
        if self.rank == 0 and self.what == "watcher":
            assert self.store is not None
            self.store.set("over", "1")
        elif self.rank == 0:
            for rank in range(1, dist.get_world_size()):
                dist.send(torch.ones(1), dst=rank, group=self.group)
        self.thread.join()
        dist.barrier()


def busy(seconds: float) -> None:
    """A compiler, in Python."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        sum(range(10_000))


def pause(what: str, step: int, rank: int, seconds: float) -> None:
    """What this rank does before a step."""
    if what == "checkpoint" and step % 3 == 2 and rank == 0:
        time.sleep(seconds)
    elif what == "compile" and step == 0:
        busy(seconds * (1 + rank / 2))
    elif what == "loader" and step == 0 and rank == 1:
        time.sleep(seconds)
    elif what in ("listener", "watcher"):
        time.sleep(seconds / STEPS)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    whats = ("checkpoint", "compile", "loader", "listener", "watcher")
    parser.add_argument("--what", choices=whats, default="checkpoint")
    parser.add_argument("--seconds", type=float, default=30.0)
    chosen = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    listener = Listener(chosen.what) if chosen.what in ("listener", "watcher") else None
    total = torch.zeros(4)
    for step in range(STEPS):
        pause(chosen.what, step, rank, chosen.seconds)
        time.sleep(0.5)
        dist.all_reduce(total.add_(1))
    dist.barrier()
    if listener is not None:
        listener.end()
    print(f"rank {rank}: {total.tolist()}\n", end="", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
