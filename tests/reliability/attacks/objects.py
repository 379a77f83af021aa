"""Objects of torch: subclasses, hooks, graphs, futures and errors are what they were."""

from __future__ import annotations

import contextlib
import copy
import time
import traceback
from collections import Counter
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from reliability.attacks.ground import group, say, told


def stores_of_the_program() -> None:
    """A Store in Python, in part and in whole, below a prefix and below a group."""
    calls: Counter[str] = Counter()

    class Mine(dist.Store):
        def __init__(self) -> None:
            super().__init__()
            self.kept: dict[str, bytes] = {}

        def set(self, key: str, value: Any) -> None:
            calls["set"] += 1
            self.kept[key] = value if isinstance(value, bytes) else value.encode()

        def get(self, key: str) -> bytes:
            calls["get"] += 1
            return self.kept[key]

        def add(self, key: str, value: int) -> int:
            calls["add"] += 1
            self.kept[key] = str(int(self.kept.get(key, b"0")) + value).encode()
            return int(self.kept[key])

        def wait(self, keys: list[str], *_: Any) -> None:
            calls["wait"] += 1
            if any(key not in self.kept for key in keys):
                raise LookupError("mine")

        def check(self, keys: list[str]) -> bool:
            calls["check"] += 1
            return all(key in self.kept for key in keys)

    class Less(dist.Store):
        pass

    mine = Mine()
    below = dist.PrefixStore("p", mine)
    below.set("a", "1")
    say(got=below.get("a"), added=mine.add("n", 2), keys=sorted(mine.kept))
    for ask in (lambda: mine.wait(["no"]), lambda: below.wait(["no"]), lambda: Less().get("a")):
        say(asked=told(ask))
    dist.init_process_group("gloo", store=mine, rank=0, world_size=1)
    dist.all_reduce(torch.ones(2))
    say(calls=sorted(calls.items()), keys=len(mine.kept))


def groups_of_the_program() -> None:
    """A ProcessGroup in Python, registered as a backend, gets each call once."""
    calls: Counter[str] = Counter()

    class Done(dist._Work):
        def wait(self, timeout: Any = None) -> bool:
            calls["wait"] += 1
            return True

    class Mine(dist.ProcessGroup):
        def allreduce(self, tensors: Any, options: Any = None) -> Any:
            calls["allreduce"] += 1
            return Done()

        def broadcast(self, tensors: Any, options: Any = None) -> Any:
            calls["broadcast"] += 1
            raise ArithmeticError("mine")

        def getBackendName(self) -> str:  # noqa: N802 - torch's name
            return "mine"

    def make(store: Any, rank: int, size: int, timeout: Any) -> Any:
        return Mine(rank, size)

    dist.Backend.register_backend("mine", make, devices=["cpu"])
    dist.init_process_group("mine", store=dist.HashStore(), rank=0, world_size=1)
    tensor = torch.ones(2)
    say(result=dist.all_reduce(tensor), work=dist.all_reduce(tensor, async_op=True) is None)
    say(refused=told(lambda: dist.broadcast(tensor, 0)), calls=sorted(calls.items()))


def errors_that_pass(dist: Any) -> None:
    """An exception of a property, a subclass or a callback is the very object that was raised."""
    mine = LookupError("mine")

    class Odd(torch.Tensor):
        @classmethod
        def __torch_function__(
            cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            raise mine

    calls: tuple[Any, ...] = (
        lambda: dist.all_reduce(torch.ones(2).as_subclass(Odd)),
        lambda: dist.all_gather_object([None], _Raises(mine)),
    )
    for call in calls:
        try:
            say(result=call())
        except Exception as error:
            say(same=error is mine, kind=type(error).__name__, context=repr(error.__context__))
    work: Any = dist.all_reduce(torch.ones(2), async_op=True)
    future: Any = work.get_future().then(lambda _: 1 / 0)
    say(raised=told(future.wait))


class _Raises:
    def __init__(self, error: Exception) -> None:
        self.error = error

    def __reduce__(self) -> Any:
        raise self.error


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


def futures_and_callbacks(dist: Any) -> None:
    """Callbacks run as often, in the same order, with the same values."""
    order: list[str] = []
    works: list[Any] = []
    for n in range(4):
        work: Any = dist.all_reduce(torch.full((2,), float(n)), async_op=True)
        works.append(work.get_future().then(partial(_note, order, str(n))))
    done = torch.futures.collect_all(works).wait()
    say(order=sorted(order), values=[one.value()[0].tolist() for one in done])
    say(kind=[type(one).__name__ for one in works])


def _note(order: list[str], name: str, future: Any) -> Any:
    order.append(name)
    return future.value()


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


def compiled_and_exported(dist: Any) -> None:
    """torch.compile with breaks, torch.export, torch.fx and TorchScript: graphs and errors."""
    import torch._dynamo.testing
    import torch.distributed._functional_collectives as functional

    counter = torch._dynamo.testing.CompileCounter()

    def whole(x: Any) -> Any:
        x = x + 1
        dist.all_reduce(x)
        dist.broadcast(x, 0)
        return x * 2

    step: Any = torch.compile(whole, backend=counter)
    for n in range(3):
        result = step(torch.full((2,), float(n)))
    say(frames=counter.frame_count, ops=counter.op_count, result=result.tolist())

    class Model(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return functional.all_reduce(x * 2, "sum", dist.group.WORLD) + 1

    step = torch.compile(Model(), backend=counter, fullgraph=True)
    for n in range(4):
        result = step(torch.full((3,), float(n)))
    say(frames=counter.frame_count, result=result.tolist())
    exported = torch.export.export(Model(), (torch.ones(2),))
    say(code=exported.graph_module.code.splitlines())
    for make in (torch.fx.symbolic_trace, torch.jit.script):
        try:
            made: Any = make(whole)
            say(made=str(getattr(made, "code", made)).splitlines())
        except Exception as error:
            lines = [x for x in str(error).splitlines() if x.strip()]
            say(kind=type(error).__name__, text=lines[:1])
    explained = torch._dynamo.explain(whole)(torch.ones(2))
    say(breaks=explained.graph_break_count, graphs=explained.graph_count)


def keys_and_values() -> None:
    """Keys and values of all sorts come back as they were."""
    store = dist.TCPStore("127.0.0.1", 0, 1, True, wait_for_workers=False)
    below = dist.PrefixStore("\x00odd/\n", store)
    for key in ("", "a" * 1000, "a\x00b", "ä€😀", "disttrace", "//", "\n", "x y"):
        with contextlib.suppress(Exception):
            below.set(key, b"\x00\xff" * 3)
            say(key=len(key), got=below.get(key), there=below.check([key]))
    store.set("big", b"x" * 100_000)
    say(big=len(store.get("big")), keys=store.num_keys(), deleted=store.delete_key("big"))
    say(swapped=store.compare_set("new", "", "1"), many=store.multi_get(["new"]))
    store.append("new", "2")
    queue: Any = store
    with contextlib.suppress(AttributeError):
        queue.queue_push("q", "1")
        say(popped=queue.queue_pop("q"), length=queue.queue_len("q"))
    say(list=sorted(len(k) for k in getattr(store, "list_keys", list)()), text=repr(store)[:30])


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
