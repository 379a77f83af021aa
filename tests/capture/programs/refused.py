"""Calls that torch refuses before a method is called, each caught; prints the exceptions.

    python refused.py RANK WORLD STORE_FILE

Ranks 1 and 2 of three are a group of their own, in which they name rank 0.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist


def refused(call: Callable[[], Any]) -> None:
    """Call and print what it raises, without addresses."""
    try:
        call()
    except Exception as error:
        print(type(error).__name__, str(error).partition(" at 0x")[0].partition("\n")[0])
    else:
        print("nothing")


def main(rank: int, world: int, file: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=world)
    group = dist.new_group([1, 2])
    x = torch.ones(4)
    if rank:
        refused(lambda: dist.broadcast(x, src=0, group=group))
        refused(lambda: dist.reduce(x, 0, group=group))
        refused(lambda: dist.send(x, 0, group))
        refused(lambda: dist.recv(x, src=0, group=group))
    refused(lambda: dist.send(x, rank))  # to itself
    refused(lambda: dist.all_reduce("no tensor"))
    refused(lambda: dist.all_reduce(torch.ones(4, dtype=torch.int8).to_sparse()))
    refused(lambda: dist.all_gather_object([None], lambda: None))  # a composed one's own
    refused(lambda: dist.all_reduce(x, op=dist.ReduceOp.BAND))  # by the method itself
    # Gloo's barrier would wait for works before it, also a failed one.
    dist.all_reduce(torch.ones(1))
    print("done", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
