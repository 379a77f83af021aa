"""torch: modes, subclasses, profilers, memory and forks see what they saw."""

from __future__ import annotations

import gc
import os
import threading
import weakref
from collections import Counter
from typing import Any

import torch
import torch.distributed as dist

from reliability.attacks.ground import group, reduce, say, told


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


def tensor_subclasses() -> None:
    """A subclass that counts what it is asked is asked for the program's calls only."""
    seen: Counter[str] = Counter()

    class Mine(torch.Tensor):
        @classmethod
        def __torch_function__(
            cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            seen[getattr(func, "__name__", str(func))] += 1
            return super().__torch_function__(func, types, args, kwargs or {})

    dist = group()
    tensor = torch.ones(3).as_subclass(Mine)
    seen.clear()
    for _ in range(2):
        dist.all_reduce(tensor)
        dist.broadcast(tensor, 0)
    say(seen=sorted(seen.items()))


def life_of_groups() -> None:
    """A destroyed group, a store and its port are free at once."""
    port = 0
    for _ in range(3):
        store = dist.TCPStore("127.0.0.1", port, 1, True, wait_for_workers=False)
        port = store.port
        dist.init_process_group("gloo", store=store, rank=0, world_size=1)
        reduce(dist)
        ref = weakref.ref(dist.group.WORLD)
        dist.destroy_process_group()
        del store
        gc.collect()
        say(gone=ref() is None)
