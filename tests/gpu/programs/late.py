"""Two ranks on NCCL; the second comes late to one all-reduce, the host of the first goes on.

    python late.py RANK STORE_FILE FOLDER SECONDS

With one GPU both ranks share it: NCCL takes them for two hosts (NCCL_HOSTID).
"""

from __future__ import annotations

import sys
import time

import torch
import torch.distributed as dist

import disttrace


def main(rank: int, file: str, folder: str, seconds: float) -> None:
    disttrace.install(dir=folder)
    device = torch.device("cuda", rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", init_method=f"file://{file}", rank=rank, world_size=2)
    x = torch.ones(1024, device=device)
    for _ in range(3):
        dist.all_reduce(x)
    torch.cuda.synchronize()
    if rank == 1:
        time.sleep(seconds)
    begin = time.monotonic()
    dist.all_reduce(x)
    print("returned after", time.monotonic() - begin)
    x.sum().item()
    work = dist.all_reduce(x, async_op=True)
    work.wait()
    with dist._coalescing_manager(device=device, async_ops=True) as manager:
        dist.all_reduce(x)
        dist.all_reduce(x)
    manager.wait()
    other = 1 - rank
    batch = [dist.P2POp(dist.isend, x, other), dist.P2POp(dist.irecv, torch.empty_like(x), other)]
    for each in dist.batch_isend_irecv(batch):
        each.wait()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        dist.all_reduce(x)
    graph.replay()
    torch.cuda.synchronize()
    time.sleep(1)  # the poller looks every 20 ms
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3], float(sys.argv[4]))
