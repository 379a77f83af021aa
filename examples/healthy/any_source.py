"""A server that takes requests from whoever comes first.

    python examples/faults/launch.py --world 3 examples/healthy/any_source.py

Legal: `disttrace diagnose` finds no error and no warning. A receive from any source waits for one
of the others, not for all of them.
"""

from __future__ import annotations

import torch
import torch.distributed as dist

REQUESTS = 4


def serve(size: int) -> None:
    """Answer each request to the one it came from."""
    request = torch.zeros(4)
    for _ in range(REQUESTS * (size - 1)):
        client = dist.recv(request)
        dist.send(request + 1, dst=client)


def ask() -> None:
    """Send requests and await each answer."""
    answer = torch.zeros(4)
    for number in range(REQUESTS):
        dist.send(torch.full((4,), float(number)), dst=0)
        dist.recv(answer, src=0)


def main() -> None:
    dist.init_process_group("gloo")
    if dist.get_rank() == 0:
        serve(dist.get_world_size())
    else:
        ask()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
