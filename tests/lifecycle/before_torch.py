"""A worker of which one rank fails before it imports torch."""

import os

if os.environ["RANK"] == "1":
    raise KeyError("no such setting")

import torch.distributed as dist

dist.init_process_group("gloo")
dist.destroy_process_group()
