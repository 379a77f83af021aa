"""Row 15: the clocks of two hosts differ by seconds and drift apart.

    python examples/faults/launch.py --world 4 examples/faults/two_hosts.py

The fault is in the clocks, which a test hook shifts per process. Ends well, healthy, and no message
arrives before it was sent. With `--then sleep` rank 1 sleeps at L1 while the others wait at L2: the
same `missing_participant` as with true clocks; with `--then late` it is late by 50 ms in each step:
the same `straggler`.
"""

from __future__ import annotations

import time

import torch
import torch.distributed as dist
from common import join, options

STEPS = 40


def main() -> None:
    """Messages and collectives, so that the clocks can be told from them."""
    parser = options(__doc__, culprit=1)
    parser.add_argument("--then", choices=["end", "sleep", "late"], default="end")
    chosen = parser.parse_args()
    rank, size = join()
    data = torch.ones(8)
    for _ in range(STEPS):
        if rank % 2 == 0 and rank + 1 < size:
            dist.send(data, dst=rank + 1)
            dist.recv(data, src=rank + 1)
        elif rank % 2:
            dist.recv(data, src=rank - 1)
            dist.send(data, dst=rank - 1)
        if chosen.then == "late" and rank == chosen.culprit:
            time.sleep(0.05)
        dist.all_reduce(torch.ones(8))  # <- L3
    if chosen.then == "sleep" and rank == chosen.culprit:
        time.sleep(600)  # <- L1
    dist.all_reduce(torch.ones(8))  # <- L2
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
