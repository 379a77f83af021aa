"""A Python Backend serves a ProcessGroup, which calls it from C++ through its trampoline.

Prints how often each method of the backend ran: once for every operation, whoever issued it.
"""

from __future__ import annotations

import collections
import json
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Backend, Work

RAN: dict[str, int] = collections.Counter()


class Done(Work):
    def __init__(self, result: list[Any]) -> None:
        super().__init__()
        self.future: torch.futures.Future[Any] = torch.futures.Future()
        self.future.set_result(result)

    def wait(self, timeout: Any = None) -> bool:
        return True

    def is_completed(self) -> bool:
        return True

    def get_future(self) -> Any:
        return self.future


class Own(Backend):
    """Answers by itself, for a group of one."""

    def getBackendName(self) -> str:  # noqa: N802 - torch asks for this name
        return "own"

    def allreduce(self, tensors: Any, opts: Any = None) -> Work:
        RAN["all_reduce"] += 1
        if tensors[0].numel() == 3:
            raise ValueError("three are too many")
        return Done(tensors)

    def broadcast(self, tensors: Any, opts: Any = None) -> Work:
        RAN["broadcast"] += 1
        return Done(tensors)

    def barrier(self, opts: Any = None) -> Work:
        RAN["barrier"] += 1
        return Done([])


def main() -> None:
    made: list[Own] = []

    def create(store: Any, rank: int, size: int, timeout: Any) -> Own:
        made.append(Own(rank, size))
        return made[-1]

    try:
        Own(0, 1)
    except TypeError as error:
        print(error)  # this torch has no Python backends
        return
    dist.Backend.register_backend("own", create, devices=["cpu"])
    dist.init_process_group("own", store=dist.HashStore(), rank=0, world_size=1)
    x = torch.ones(2)
    dist.all_reduce(x)
    dist.all_reduce(x, async_op=True).wait()
    dist.broadcast(x, 0)
    dist.barrier()
    made[0].allreduce([x]).wait()
    functional = torch.ops._c10d_functional
    name = dist.group.WORLD.group_name
    functional.wait_tensor(functional.all_reduce(x, "sum", name))
    refusals: tuple[Callable[[], object], ...] = (
        lambda: functional.all_reduce(torch.ones(3), "sum", name),
        lambda: made[0].allreduce([torch.ones(3)]),
    )
    for refused in refusals:
        try:
            refused()
        except ValueError as error:
            print(error)
    made[0].allreduce([x]).wait()
    print(json.dumps(RAN), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
