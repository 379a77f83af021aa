"""Issues operations through every path; says what passed torch's dispatcher, counted apart from us.

    python paths.py RANK WORLD STORE_FILE

Untraced, kernels of this program's own count the operators `c10d::*`, and the counts of each way
are printed as JSON. Traced or not, it says how each way ended.
"""

from __future__ import annotations

import collections
import datetime
import json
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed
from torch._C import DispatchKey, _dispatch_keyset_full_after

import disttrace

LIMIT = datetime.timedelta(seconds=20)
Way = Callable[..., str | None]
dist: Any = torch.distributed  # of which each version has other functions


def count_operators() -> dict[str, int]:
    """Counts of every operator of c10d from now on, by name."""
    after = _dispatch_keyset_full_after(DispatchKey.BackendSelect)
    library = torch.library.Library("c10d", "IMPL")
    counts: dict[str, int] = collections.Counter()

    def kernel(name: str, operator: Any) -> Any:
        def count(keyset: Any, *args: Any) -> Any:
            counts[name] += 1
            return operator.redispatch(keyset & after, *args)

        return count

    for schema in torch._C._jit_get_all_schemas():
        name = schema.name.removeprefix("c10d::")
        if name != schema.name and any(a.name == "process_group" for a in schema.arguments):
            operator = getattr(torch.ops.c10d, name).default
            library.impl(name, kernel(name, operator), "BackendSelect", with_keyset=True)
    globals()["_kept"] = library
    return counts


def python_issued(rank: int, world: int, store: Any) -> None:
    """Plain, asynchronous and object collectives, messages, batches, any source, threads."""
    x = torch.ones(4)
    for _ in range(2):
        dist.all_reduce(x)
    dist.broadcast(x, 0)
    dist.reduce(x, 0)
    dist.all_gather([torch.zeros(4) for _ in range(world)], x)
    dist.all_to_all_single(torch.zeros(4), x)
    dist.gather(x, [torch.zeros(4) for _ in range(world)] if rank == 0 else None, 0)
    dist.scatter(x, [torch.ones(4) for _ in range(world)] if rank == 0 else None, 0)
    dist.barrier()
    dist.monitored_barrier()
    dist.all_reduce(x, async_op=True).wait()
    looped = dist.all_reduce(x, async_op=True)
    while not looped.is_completed():
        pass
    dist.all_reduce(x, async_op=True).get_future().wait()
    dist.all_gather_object([None] * world, rank)
    dist.broadcast_object_list([rank], 0)
    other = (rank + 1) % world
    batch = [dist.P2POp(dist.isend, x, other), dist.P2POp(dist.irecv, torch.zeros(4), other)]
    for work in dist.batch_isend_irecv(batch):
        work.wait()
    if rank == 0:
        dist.recv(torch.zeros(4))
    else:
        dist.send(x, 0)
    group = dist.new_group()
    thread = threading.Thread(target=lambda: dist.all_reduce(torch.ones(4), group=group))
    thread.start()
    thread.join()
    dist.group.WORLD.allreduce([x]).wait()


def native_issued(*given: Any) -> None:
    """Functional collectives, also in inference mode and in a thread, and DDP."""
    name = dist.group.WORLD.group_name
    functional = torch.ops._c10d_functional
    x = torch.ones(4)
    functional.wait_tensor(functional.all_reduce(x, "max", name))
    with torch.inference_mode():
        functional.wait_tensor(functional.all_reduce(x.clone(), "sum", name))
    functional.wait_tensor(functional.all_gather_into_tensor(x, 2, name))
    from torch.distributed import _functional_collectives

    _functional_collectives.all_reduce(x, "sum", dist.group.WORLD).sum().item()
    wait = functional.wait_tensor
    thread = threading.Thread(target=lambda: wait(functional.broadcast(x, 0, name)))
    thread.start()
    thread.join()
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 3))
    for _ in range(3):
        model(torch.ones(2, 3)).sum().backward()


def fully_sharded(*given: Any) -> None:
    """One step of FSDP2, where this torch has it for CPUs."""
    try:
        from torch.distributed.fsdp import fully_shard
    except ImportError:
        return
    import gc

    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    fully_shard(model[0], mesh=mesh)
    fully_shard(model, mesh=mesh)
    model(torch.ones(2, 4)).sum().backward()
    del model
    gc.collect()


def main(ways: Sequence[Way]) -> None:
    """Go all ways, and meet in a barrier."""
    rank, world = map(int, sys.argv[1:3])
    store = dist.FileStore(sys.argv[3], world)
    first = dist.PrefixStore("first", store)
    dist.init_process_group("gloo", store=first, rank=rank, world_size=world, timeout=LIMIT)
    counts = {} if disttrace.is_installed() else count_operators()
    endings, by_way = {}, {}
    for way in ways:
        before = collections.Counter(counts)
        try:
            endings[way.__name__] = way(rank, world, store)
        except Exception as error:
            endings[way.__name__] = f"{type(error).__name__}: {error}".partition("\n")[0]
        by_way[way.__name__] = dict(collections.Counter(counts) - before)
    print(json.dumps({"endings": endings, "counts": by_way}), flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main([python_issued, native_issued, fully_sharded])
