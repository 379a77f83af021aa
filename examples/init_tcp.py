"""The way in by `tcp://`: rank 0 itself hosts the store on an address that all know.

    python examples/init_tcp.py

With DISTTRACE=1 in front, `disttrace view` shows rank 0 as the server of the store in which both
meet, and no agent.
"""

from __future__ import annotations

import socket
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

WORLD_SIZE = 2


def worker(rank: int, address: str) -> None:
    """Join at the address and prove it with one all-reduce."""
    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=WORLD_SIZE)
    data = torch.ones(1)
    dist.all_reduce(data)
    sys.stdout.write(f"rank {rank} of {WORLD_SIZE}: {data.item():g}\n")
    dist.destroy_process_group()


def main() -> None:
    """Choose a free port and spawn the ranks."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    mp.spawn(worker, args=(f"tcp://127.0.0.1:{port}",), nprocs=WORLD_SIZE)


if __name__ == "__main__":
    main()
