"""Says a secret in every place where a program can; argv has the secrets, and more of them."""

from __future__ import annotations

import contextlib
import sys
import tempfile

import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

import disttrace

SECRET = sys.argv[1]

store = dist.HashStore()
store.set(f"run/{SECRET}/0", "1")
store.set(f"run/{SECRET}/0", "1")
store.check([f"token={SECRET}", "plain"])
inner = dist.PrefixStore(SECRET, store)
inner.set("key", SECRET)
with disttrace.annotate(f"upload with {SECRET}"):
    store.num_keys()
dist.FileStore(f"{tempfile.mkdtemp()}/{SECRET}", 1)
with contextlib.suppress(Exception):
    dist.init_process_group("gloo", init_method=f"tcp://me:{SECRET}@[bad/", rank=0, world_size=1)
dist.init_process_group("fake", rank=0, world_size=1, store=FakeStore())
group = dist.new_group([0], group_desc=SECRET)
dist.all_reduce(torch.ones(1), group=group)
print("done")
raise RuntimeError(f"cannot log in with {SECRET}")
