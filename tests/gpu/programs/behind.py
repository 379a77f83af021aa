"""All-reduces issued behind a kernel that runs for seconds, on one rank.

    python behind.py FOLDER|- SECONDS

Prints, for several rounds, the host's time for issuing them as a share of the time until the device
was done. Who synchronises somewhere gets a share of one. FOLDER is where to trace to; -: untraced.
"""

from __future__ import annotations

import sys
import time

import torch
import torch.distributed as dist

import disttrace

ROUNDS, CALLS = 5, 20
_TRIAL = 10_000_000


def main(folder: str, seconds: float) -> None:
    if folder != "-":
        disttrace.install(dir=folder)
    torch.cuda.set_device(0)
    dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1)
    x = torch.ones(1024, device="cuda")
    dist.all_reduce(x)
    cycles = int(_TRIAL * seconds / _taken(_TRIAL))
    for _ in range(ROUNDS):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        torch.cuda._sleep(cycles)
        for _ in range(CALLS):
            dist.all_reduce(x)
            dist.all_reduce(x, async_op=True).wait()
        issued = time.perf_counter() - begin
        torch.cuda.synchronize()
        print(issued / (time.perf_counter() - begin))
    dist.destroy_process_group()


def _taken(cycles: int) -> float:
    """Seconds that the device sleeps for ``cycles``."""
    torch.cuda.synchronize()
    begin = time.perf_counter()
    torch.cuda._sleep(cycles)
    torch.cuda.synchronize()
    return time.perf_counter() - begin


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
