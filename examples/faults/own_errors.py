"""Row 22: a rank fails by itself, and what the others say sounds like a failure too.

    python examples/faults/launch.py --world 3 examples/faults/own_errors.py --how loader

`--how`: a loader that times out (`loader`) or whose worker died (`worker`), a peer outside of the
job that resets a connection (`reset`), an upload that times out (`upload`): their texts read like
those of a lost rank, and yet they are the rank's own (L1 to L4). `raise` fails plainly. The others
are in an all_reduce then (L5) and end as `--survivors` says: by torch's exception (`torch`), by
their own exception after they have saved for some seconds (`save`), by one raised from torch's
(`chain`), by `sys.exit(13)` (`exit`) or `os._exit(13)` (`os_exit`). Verdict: `process_failed`, the
culprit and those of `--also`, which is all ranks at once in the worst case; nobody else.
`--keep` leaves a thread behind that keeps the culprit's process alive after its failure.
"""

from __future__ import annotations

import os
import signal
import socket
import struct
import sys
import threading
import time

import torch
import torch.distributed as dist
from common import deeper, join, options, ranks, subgroup
from torch.utils.data import DataLoader, Dataset

STEPS = 4


class Slow(Dataset[int]):
    """Items that never come; or a worker that dies over them."""

    def __init__(self, how: str) -> None:
        self.how = how

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        if self.how == "worker":
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(30)
        return index


def load(how: str) -> None:
    """One batch from a worker process."""
    for _ in DataLoader(Slow(how), num_workers=1, timeout=1 if how == "loader" else 0):  # <- L1
        return


def reset() -> None:
    """Talk to a server that resets the connection."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = socket.create_connection(server.getsockname())
        other, _ = server.accept()
        other.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        other.close()
        client.recv(1)  # <- L2


def upload() -> None:
    """Wait for an answer that does not come."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = socket.create_connection(server.getsockname(), timeout=0.5)
        client.recv(1)  # <- L3


def fail(how: str) -> None:
    """Fail without any help of the other ranks."""
    if how in ("loader", "worker"):
        load(how)
    elif how == "reset":
        reset()
    elif how == "upload":
        upload()
    raise ValueError("the loss is not a number")  # <- L4


def end(how: str) -> None:
    """What a survivor does once its collective has failed."""
    time.sleep(3)  # saves what it has
    if how == "exit":
        sys.exit(13)
    if how == "os_exit":
        os._exit(13)
    raise RuntimeError("training aborted, checkpoint written")


def main() -> None:
    """Train; in one step a rank fails."""
    parser = options(__doc__, culprit=1)
    hows = ["loader", "worker", "reset", "upload", "raise"]
    parser.add_argument("--how", choices=hows, default="loader")
    parser.add_argument("--also", type=ranks, default=[], help="further culprits")
    parser.add_argument("--keep", action="store_true", help="a thread keeps the process alive")
    ways = ["torch", "save", "chain", "exit", "os_exit"]
    parser.add_argument("--survivors", choices=ways, default="torch")
    chosen = parser.parse_args()
    rank, _ = join()
    group, members = subgroup(chosen.group)
    if rank in members:
        for step in range(STEPS):
            if step == chosen.step and rank in [chosen.culprit, *chosen.also]:
                if chosen.keep:
                    threading.Thread(target=time.sleep, args=(600,)).start()
                deeper(chosen.deep, lambda: fail(chosen.how))
            try:
                dist.all_reduce(torch.ones(8), group=group)  # <- L5
            except RuntimeError as error:
                if chosen.survivors == "torch":
                    raise
                if chosen.survivors == "chain":
                    raise OSError("cannot go on") from error
                break
        else:
            dist.barrier()
            return
        end(chosen.survivors)


if __name__ == "__main__":
    main()
