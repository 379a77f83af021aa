"""Two ranks on NCCL; the second never comes, and the first is ended by torch's watchdog.

    python abandoned.py RANK STORE_FILE FOLDER|- SECONDS

SECONDS is the group's time-out; the second rank leaves without a word after four times that. With
TORCH_NCCL_ASYNC_ERROR_HANDLING=1, the default, the watchdog aborts the process of the first.
"""

from __future__ import annotations

import datetime
import os
import sys
import time

import torch
import torch.distributed as dist

import disttrace


def main(rank: int, file: str, folder: str, seconds: float) -> None:
    if folder != "-":
        disttrace.install(dir=folder)
    device = torch.device("cuda", rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    dist.init_process_group(
        "nccl",
        init_method=f"file://{file}",
        rank=rank,
        world_size=2,
        timeout=datetime.timedelta(seconds=seconds),
    )
    x = torch.ones(1024, device=device)
    dist.all_reduce(x)
    torch.cuda.synchronize()
    if rank == 1:
        time.sleep(4 * seconds)
        os._exit(0)
    dist.all_reduce(x)
    print(x.sum().item())


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3], float(sys.argv[4]))
