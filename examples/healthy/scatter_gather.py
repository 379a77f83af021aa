"""Scatter and gather, whose arguments differ between the root and the others.

    python examples/faults/launch.py --world 3 examples/healthy/scatter_gather.py

Legal: `disttrace diagnose` finds no error and no warning. Only the root passes the list; the pieces
of `all_to_all` differ in size from rank to rank.
"""

from __future__ import annotations

import torch
import torch.distributed as dist


def main() -> None:
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    piece = torch.zeros(8)
    for root in range(size):
        parts = [torch.full((8,), float(one)) for one in range(size)]
        dist.scatter(piece, parts if rank == root else None, src=root)
        dist.gather(piece, parts if rank == root else None, dst=root)
    words: list[object] = [None] * size
    dist.all_gather_object(words, "word" * (rank + 1))
    # Rank i sends j + 1 elements to rank j.
    sent = torch.ones(sum(range(1, size + 1)))
    received = torch.zeros(size * (rank + 1))
    dist.all_to_all_single(received, sent, [rank + 1] * size, list(range(1, size + 1)))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
