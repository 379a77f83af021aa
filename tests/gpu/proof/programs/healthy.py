"""Jobs that are well: every kind of call, and what makes the recorder's life hard."""

from __future__ import annotations

import time

from gpu.proof.rank import Rank, exchange, say


def healthy(rank: Rank) -> None:
    """Synchronous, asynchronous, coalesced, batched, of objects, messages, functional."""
    torch, dist, x = rank.torch, rank.dist, rank.x
    for _ in range(20):
        dist.all_reduce(x)
        x.fill_(1.0)
    for work in [dist.all_reduce(x.clone(), async_op=True) for _ in range(4)]:
        work.wait()
    dist.broadcast(x, 0)
    wide = torch.empty(1024 * rank.world, device=rank.device)
    dist.all_gather_into_tensor(wide, x)
    dist.reduce_scatter_tensor(torch.empty_like(x), wide)
    dist.all_to_all_single(torch.empty_like(x), x)
    if rank.cuda:
        with dist._coalescing_manager(device=rank.device, async_ops=True) as manager:
            dist.all_reduce(x)
            dist.all_reduce(x.clone())
        manager.wait()
        with dist._coalescing_manager():
            dist.all_reduce(x)
            dist.all_reduce(x.clone())
    dist.barrier()
    dist.broadcast_object_list([{"a": 1}], 0)
    dist.all_gather_object([None] * rank.world, {"rank": rank.rank})
    for _ in range(20):
        exchange(rank)
    if rank.rank == 0:
        dist.send(x, 1)
        dist.recv(x, 1)
    else:
        dist.recv(x, 0)
        dist.send(x, 0)
    from torch.distributed import _functional_collectives as functional

    functional.wait_tensor(functional.all_reduce(x, "sum", dist.group.WORLD))
    rank.end_well()


def uneven(rank: Rank) -> None:
    """all_gather and reduce_scatter with different sizes: several flight-recorder entries."""
    torch, dist = rank.torch, rank.dist
    mine = torch.ones(100 * (rank.rank + 1), device=rank.device)
    outs = [torch.empty(100 * (r + 1), device=rank.device) for r in range(rank.world)]
    dist.all_gather(outs, mine)
    dist.reduce_scatter(torch.empty_like(mine), [torch.ones_like(o) for o in outs])
    rank.end_well()


def late(rank: Rank) -> None:
    """Rank 1 comes three seconds late; the others' devices wait so long, and their hosts not."""
    if rank.absent():
        time.sleep(3)
    begin = time.perf_counter()
    rank.dist.all_reduce(rank.x)
    say(returned=time.perf_counter() - begin)
    rank.block()
    rank.end()


def quiet(rank: Rank) -> None:
    """Six seconds without an operation: the thread that asks has ended, and starts anew."""

    def used() -> int:
        if not rank.cuda:
            return 0
        free, total = rank.torch.cuda.mem_get_info(0)
        return int(total - free)

    before = used()
    for _ in range(2):
        rank.dist.all_reduce(rank.x)
        rank.sync()
        time.sleep(6)
    rank.dist.all_reduce(rank.x)
    rank.sync()
    time.sleep(1)
    say(gpu_0_used=[before, used()])
    rank.end_well()
