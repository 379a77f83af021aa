"""Messages told apart by tags and received in another order than sent.

    python examples/faults/launch.py --world 2 examples/healthy/tags_out_of_order.py

Legal: `disttrace diagnose` finds no error and no warning. They match by tag, not by position.
"""

from __future__ import annotations

import torch
import torch.distributed as dist

TAGS = (1, 2, 3)
ROUNDS = 3


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    for _ in range(ROUNDS):
        if rank == 0:
            works = [dist.isend(torch.full((8,), float(tag)), dst=1, tag=tag) for tag in TAGS]
            for work in works:
                work.wait()
        elif rank == 1:
            for tag in reversed(TAGS):
                data = torch.zeros(8)
                dist.recv(data, src=0, tag=tag)
                assert data[0] == tag
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
