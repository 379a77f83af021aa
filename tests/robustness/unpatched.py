"""Takes a picture of all that could be patched, traces a while, and prints what differs."""

import multiprocessing.popen_fork
import multiprocessing.popen_forkserver
import multiprocessing.process
import multiprocessing.util
import os
import sys
import threading
from types import FunctionType

import torch
import torch.distributed as dist
import torch.distributed.run
import torch.multiprocessing.spawn
from torch._C import _distributed_c10d as bindings
from torch.distributed import all_gather_object, batch_isend_irecv, init_process_group
from torch.testing._internal.distributed.fake_pg import FakeStore

import disttrace

BEFORE = (all_gather_object, batch_isend_irecv, init_process_group)
# Not sys.excepthook: init_process_group puts a new one of torch's over whatever stands there.
HOOKS = ((threading, "excepthook"), (os, "_exit"))
MODULES = (multiprocessing.popen_fork, multiprocessing.popen_forkserver, multiprocessing.process)


def picture() -> dict[str, object]:
    """Every entry of every class, and every function with its code."""
    seen: dict[str, object] = {f"{h.__name__}.{name}": getattr(h, name) for h, name in HOOKS}
    names = [name for name in sys.modules if name.startswith("torch.distributed.")]
    modules = [*MODULES, multiprocessing.util, bindings, *(sys.modules[n] for n in names)]
    for module in modules:
        for name, value in list(vars(module).items()):
            where = f"{module.__name__}.{name}"
            if isinstance(value, type):
                for key, entry in list(vars(value).items()):
                    seen[f"{where}.{key}"] = entry
                    if type(entry) is FunctionType:
                        seen[f"{where}.{key}.__code__"] = entry.__code__
            elif type(value) is FunctionType:
                seen[where] = value
                seen[f"{where}.__code__"] = value.__code__
    return seen


class Early(dist.Store):
    """A subclass that is there before tracing."""

    def set(self, key: str, value: str) -> None:
        """Takes it."""


def use() -> None:
    """Through every kind of patch once."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    dist.all_reduce(torch.ones(2), async_op=True).wait()
    dist.all_gather_object([None, None], 1)
    Early().set("k", "v")
    dist.destroy_process_group()


before = picture()
disttrace.install()
from torch.distributed import gather_object  # noqa: E402 - in between

use()
patched = sum(value is not before.get(name) for name, value in picture().items())
disttrace.uninstall()
after = picture()
changed = [n for n in before.keys() | after.keys() if before.get(n, 0) is not after.get(n, 0)]
ours = os.path.dirname(disttrace.__file__)
names = (*BEFORE, gather_object)
still = [f for f in names if ours in f.__code__.co_filename]
print(patched > 100, sorted(changed), still, sys.meta_path[0].__class__.__module__)
