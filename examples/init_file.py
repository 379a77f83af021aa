"""The way in by `file://`: the ranks meet in a file, nobody listens for them.

    python examples/init_file.py

With DISTTRACE=1 in front, `disttrace view` shows that they meet in a file, which none serves.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

WORLD_SIZE = 2


def worker(rank: int, meeting_file: str) -> None:
    """Join through the file and prove it with one all-reduce."""
    dist.init_process_group(
        "gloo", init_method=f"file://{meeting_file}", rank=rank, world_size=WORLD_SIZE
    )
    data = torch.ones(1)
    dist.all_reduce(data)
    sys.stdout.write(f"rank {rank} of {WORLD_SIZE}: {data.item():g}\n")
    dist.destroy_process_group()


def main() -> None:
    """Spawn the ranks with a fresh file: a file of an earlier run would mislead them."""
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(worker, args=(str(Path(folder) / "meeting"),), nprocs=WORLD_SIZE)


if __name__ == "__main__":
    main()
