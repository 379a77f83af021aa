"""torch: modes, subclasses, profilers, memory and forks see what they saw."""

from __future__ import annotations

import os
import threading
from typing import Any

import torch
import torch.distributed as dist

from reliability.attacks.ground import group, say, told


def properties_that_raise() -> None:
    """A subclass whose shape and device raise is refused, or passes, as it was."""

    class Odd(torch.Tensor):
        @property
        def shape(self) -> Any:
            raise RuntimeError("asked for a shape")

        @property
        def device(self) -> Any:
            raise RuntimeError("asked for a device")

    dist = group()
    tensor = torch.ones(3).as_subclass(Odd)
    say(told=[told(lambda: dist.all_reduce(tensor)), told(lambda: dist.broadcast(tensor, 0))])


def threads_as_ranks() -> None:
    """torch's own group of threads in one process."""
    from torch.testing._internal.distributed import multi_threaded_pg as threaded

    results: list[float] = []
    world = threaded._install_threaded_pg()

    store = dist.HashStore()

    def rank(n: int) -> None:
        dist.init_process_group("threaded", rank=n, world_size=3, store=store)
        tensor = torch.full((2,), float(n))
        dist.all_reduce(tensor)
        results.append(float(tensor[0]))
        dist.barrier()
        threaded.ProcessLocalGroup.exception_handle(Exception()) if n > 9 else None

    threads = [threading.Thread(target=rank, args=(n,)) for n in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    say(results=results, world=type(world).__name__)
    threaded._uninstall_threaded_pg()
    os._exit(0)
