"""The last rank does not come to an ``all_reduce``; the others wait for it in a training step."""

from __future__ import annotations

import signal
import time

import torch
import torch.distributed as dist

import disttrace

signal.alarm(120)  # whatever happens to the test: it ends
dist.init_process_group("gloo")
if dist.get_rank() == dist.get_world_size() - 1:
    time.sleep(600)
with disttrace.annotate("train_step"):
    dist.all_reduce(torch.ones(1))
