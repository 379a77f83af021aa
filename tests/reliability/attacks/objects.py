"""Objects of torch: subclasses, hooks, graphs, futures and errors are what they were."""

from __future__ import annotations

import copy
import time
import traceback
from collections import Counter
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from reliability.attacks.ground import group, say


def objects_asked() -> None:
    """Objects handed to object collectives and to keys are asked for nothing more."""
    asked: Counter[str] = Counter()

    def noting(name: str, result: object) -> Any:
        def note(*_: object) -> object:
            asked[name] += 1
            return result

        return note

    class Odd:
        def __getattribute__(self, name: str) -> Any:
            asked[name] += 1
            return object.__getattribute__(self, name)

        __eq__, __hash__ = noting("==", True), noting("hash", 1)
        __bool__, __repr__ = noting("bool", True), noting("repr", "odd")

    class Key(str):
        __str__, __len__ = noting("str", "key"), noting("len", 3)
        __hash__ = noting("key hash", 7)

    globals()["Odd"] = Odd
    Odd.__qualname__ = "Odd"
    dist = group()
    store = dist.HashStore()
    asked.clear()
    dist.all_gather_object([None], Odd())
    dist.broadcast_object_list([Odd()], 0)
    store.set(Key("abc"), "x")
    store.get(Key("abc"))
    store.set("x", Key("y"))
    say(asked=sorted(asked.items()))


def model_in_parallel(dist: Any) -> None:
    """DDP with a communication hook: gradients, buckets, attributes and copies."""
    from torch.nn.parallel import DistributedDataParallel

    torch.manual_seed(0)
    buckets: list[int] = []

    def hook(state, bucket):  # type: ignore[no-untyped-def]  # torch asks for its own names
        buckets.append(bucket.index())
        future = dist.all_reduce(bucket.buffer(), async_op=True).get_future()
        return future.then(lambda f: f.value()[0] * 2)

    model = DistributedDataParallel(torch.nn.Linear(3, 2))
    plain = DistributedDataParallel(torch.nn.Linear(3, 2))
    model.register_comm_hook(None, hook)
    for one in (model, plain):
        for _ in range(3):
            one(torch.ones(1, 3)).sum().backward()
        say(grad=[p.grad.tolist() for p in one.parameters() if p.grad is not None])
        say(names=sorted(vars(one)), keys=sorted(one.state_dict()), text=repr(one))
    say(buckets=buckets, copied=type(copy.deepcopy(plain.module)).__name__)


def times_of_the_store() -> None:
    """Time-outs take as long as they are, not more, and a set wakes who waits at once."""
    import threading

    store = dist.TCPStore("127.0.0.1", 0, 1, True, wait_for_workers=False)
    for seconds in (0.2, 1.0):
        began = time.monotonic()
        try:
            store.wait(["never"], timedelta(seconds=seconds))
        except dist.DistStoreError as error:
            took = time.monotonic() - began
            say(fits=seconds * 0.9 < took < seconds + 0.7, kind=type(error).__name__)
    client = dist.TCPStore("127.0.0.1", store.port, 1, False, wait_for_workers=False)
    threading.Timer(0.5, client.set, ("later", "1")).start()
    began = time.monotonic()
    store.wait(["later"])
    say(woken=time.monotonic() - began < 2, timeout=store.timeout)


def _fail(fails: bool) -> None:
    if fails:
        raise LookupError("inside")


def coalesced() -> None:
    """The managers of torch that coalesce give their results, and pass on what is raised inside."""
    group()
    from torch.distributed.distributed_c10d import _coalescing_manager

    tensors = [torch.ones(2) * n for n in range(3)]
    for fails in (False, True):
        try:
            with _coalescing_manager(async_ops=not fails) as manager:
                for tensor in tensors:
                    dist.all_reduce(tensor)
                _fail(fails)
            manager.wait()
        except Exception as error:
            frames = [frame.name for frame in traceback.extract_tb(error.__traceback__)]
            say(kind=type(error).__name__, frames=frames)
        say(values=[t.tolist() for t in tensors])
