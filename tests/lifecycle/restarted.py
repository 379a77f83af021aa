"""A worker whose rank 1 kills itself in the first attempt; the second one meets under a new prefix.

(Meeting again under the old one fails in torch itself: the first attempt's addresses are there.)
"""

import os
import signal

import torch
import torch.distributed as dist

attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
server = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
store = dist.PrefixStore(f"attempt{attempt}", server)
dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
dist.all_reduce(torch.ones(2))
if attempt == "0" and rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
# Named: torch 2.5 may hang in destroying a group when the tensor went before.
last = torch.ones(2)
dist.all_reduce(last)
dist.destroy_process_group()
