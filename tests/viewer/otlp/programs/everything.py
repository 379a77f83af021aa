"""Messages, collectives, groups, failures and names: one of everything that becomes a span."""

from __future__ import annotations

import torch
import torch.distributed as dist

import disttrace


def main() -> None:
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    tensor = torch.ones(8)
    for _ in range(3):
        if rank == 0:
            dist.send(tensor, 1, tag=5)
        elif rank == 1:
            dist.recv(tensor, 0, tag=5)
    if rank == 2:
        dist.send(tensor, 0)
    elif rank == 0:
        dist.recv(tensor)  # from anybody
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    dist.all_reduce(tensor, group=pairs[rank // 2])
    with disttrace.annotate("epoch"):
        for _ in range(4):
            dist.all_reduce(tensor)
    work = dist.all_reduce(tensor, async_op=True)
    work.wait()
    dist.broadcast(tensor, 2)
    gathered: list[object] = [None] * size
    dist.all_gather_object(gathered, rank)
    try:
        dist.all_gather_into_tensor(torch.empty(3), torch.empty(2))  # sizes that do not fit
    except (RuntimeError, ValueError, TypeError):
        pass
    dist.barrier()
    dist.destroy_process_group()
    print("done", rank)


if __name__ == "__main__":
    main()
