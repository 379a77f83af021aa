"""Steps of uneven length, in which another rank is last each time.

    python examples/faults/launch.py --world 3 examples/healthy/jitter.py

Legal: `disttrace diagnose` finds no error and no warning. Everybody waits now and then, and nobody
is the straggler.
"""

from __future__ import annotations

import random
import time

import torch
import torch.distributed as dist


def main() -> None:
    dist.init_process_group("gloo")
    chance = random.Random(dist.get_rank())
    for _ in range(40):
        time.sleep(chance.uniform(0.0, 0.02))
        dist.all_reduce(torch.ones(8))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
