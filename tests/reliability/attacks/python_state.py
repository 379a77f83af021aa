"""The interpreter: modules, hooks, frames, clocks and random numbers are the program's."""

from __future__ import annotations

import importlib
import random
import sys

from reliability.attacks.ground import group, reduce, say, stall


def random_numbers() -> None:
    """Seeded generators of Python and torch give the same numbers, from before the start."""
    import torch

    random.seed(1)
    torch.manual_seed(1)
    dist = group()
    reduce(dist, 100)
    stall(1.5)
    say(python=random.random(), torch=torch.rand(2).tolist())


def reloaded_modules() -> None:
    """Modules of torch.distributed are reloaded, or deleted and imported again, and work."""
    import torch
    import torch.distributed as dist

    group().destroy_process_group()
    again = importlib.reload(sys.modules["torch.distributed.distributed_c10d"])
    say(same=again.all_reduce is dist.all_reduce, initialized=again.is_initialized())
    again.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    tensor = torch.ones(2)
    again.all_reduce(tensor)
    del sys.modules["torch.distributed.rendezvous"]
    importlib.invalidate_caches()
    rendezvous = importlib.import_module("torch.distributed.rendezvous")
    say(sum=float(tensor.sum()), same=rendezvous.rendezvous is dist.rendezvous)
    again.destroy_process_group()
