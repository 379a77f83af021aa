"""Row 20: two threads of each process use one group at once, so that chance orders their calls.

    python examples/faults/launch.py --world 3 examples/faults/two_threads.py

One thread reduces (L1), the other one makes a barrier (L2); on the culprit the second one happens
to come first. Hangs or aborts. Verdict: `op_mismatch` with both lines, and nobody is named although
the others are the majority: no rank is odd where the order is chance. The hint speaks of threads.
"""

from __future__ import annotations

import threading
import time

import torch
import torch.distributed as dist
from common import join, options

STEPS = 3
LATER_S = 0.3


def reduce() -> None:
    """What the trainer does."""
    dist.all_reduce(torch.ones(8))  # <- L1


def meet() -> None:
    """What a thread that saves checkpoints does."""
    dist.barrier()  # <- L2


def main() -> None:
    """Train; in one step the other thread gets in between."""
    chosen = options(__doc__, culprit=0).parse_args()
    rank, _ = join()
    for _ in range(STEPS):
        reduce()
    both = [meet, reduce] if rank == chosen.culprit else [reduce, meet]
    threads = [threading.Thread(target=target) for target in both]
    for thread in threads:
        thread.start()
        time.sleep(LATER_S)
    for thread in threads:
        thread.join()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
