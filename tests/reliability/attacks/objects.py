"""Objects of torch: subclasses, hooks, graphs, futures and errors are what they were."""

from __future__ import annotations

import contextlib
import copy
import gc
import time
import traceback
import weakref
from collections import Counter
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from reliability.attacks.ground import group, reduce, say


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
        try:
            ask()
        except Exception as error:
            say(error=f"{type(error).__name__}: {error}".splitlines()[0][:80])
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
    try:
        dist.broadcast(tensor, 0)
    except ArithmeticError as error:
        frames = [frame.name for frame in traceback.extract_tb(error.__traceback__)]
        say(error=error, frames=frames)
    say(calls=sorted(calls.items()))


def errors_of_wrong_calls(dist: Any) -> None:
    """What is wrong is told by the same types, texts and frames."""
    store = dist.HashStore()
    store.set_timeout(timedelta(milliseconds=200))
    pg: Any = dist.group.WORLD
    tensor = torch.ones(2)
    wrong: list[Any] = [
        lambda: dist.all_reduce("x"), lambda: pg.allreduce(),
        lambda: pg.allreduce(1, 2, 3, 4), lambda: dist.ProcessGroup.allreduce("x"),
        lambda: store.set(1, 2, 3), lambda: store.get(), lambda: store.get(b"\xff"),
        lambda: store.wait("abc"), lambda: store.add("a", "b"), lambda: dist.Work.wait(1),
        lambda: dist.broadcast(tensor), lambda: dist.broadcast(tensor, src=5),
        lambda: dist.all_gather([], tensor), lambda: dist.all_gather_object(None, 1),
        lambda: dist.scatter_object_list([None], None), lambda: dist.new_group([0, 0]),
        lambda: dist.new_group(backend="none"), lambda: dist.barrier(device_ids="x"),
        lambda: dist.init_process_group("gloo"), lambda: dist.all_reduce(tensor, op="sum"),
        lambda: dist.TCPStore("127.0.0.1", -5),
        lambda: dist.PrefixStore("a"), lambda: dist.PrefixStore(1, 2),
        lambda: dist.batch_isend_irecv([]),
        lambda: dist.batch_isend_irecv([1]), lambda: dist.monitored_barrier(timeout=1),
        lambda: store.wait(["never"], timedelta(milliseconds=50)),
    ]  # fmt: skip
    for n, call in enumerate(wrong):
        try:
            say(n=n, result=call())
        except Exception as error:
            frames = [frame.name for frame in traceback.extract_tb(error.__traceback__)]
            text = str(error).split("0x")[0].splitlines()[:1]
            say(n=n, kind=type(error).__name__, text=text, frames=frames, notes=vars(error))
            say(context=repr(error.__context__)[:60], cause=repr(error.__cause__)[:60])


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
    try:
        future.wait()
    except Exception as error:
        say(kind=type(error).__name__, text=str(error).splitlines()[0])


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


def operators_of_the_program(dist: Any) -> None:
    """Operators and autograd functions of the program's that communicate inside."""
    seen: list[str] = []

    made: Any = torch.library.custom_op(
        "attack::reduced", mutates_args=(), schema="(Tensor x) -> Tensor"
    )

    @made  # type: ignore[untyped-decorator]
    def reduced(x: torch.Tensor) -> torch.Tensor:
        seen.append("op")
        y = x.clone()
        dist.all_reduce(y)
        return y

    class Both(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            dist.all_reduce(x.clone())
            return x * 2

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            seen.append("backward")
            dist.all_reduce(grad)
            return grad * 3

    x = torch.ones(2, requires_grad=True)
    (Both.apply(x).sum() + reduced(x.detach()).sum()).backward()
    grad = None if x.grad is None else x.grad.tolist()
    say(seen=seen, grad=grad, schema=str(torch.ops.attack.reduced.default._schema))
    say(kernels=torch._C._dispatch_has_kernel_for_dispatch_key("c10d::allreduce_", "CPU"))


def patched_over_and_uninstalled(dist: Any) -> None:
    """The program patches over ours, ours goes, and the program takes its own off again."""
    import disttrace

    calls: list[str] = []
    names = ((dist.ProcessGroup, "allreduce"), (dist.Store, "set"), (dist.Work, "wait"))
    kept = {}
    for owner, name in names:
        kept[owner, name] = vars(owner)[name]
        original = getattr(owner, name)

        def mine(self: Any, *args: Any, _original: Any = original, _name: str = name) -> Any:
            calls.append(_name)
            return _original(self, *args)

        setattr(owner, name, mine)
    dist.HashStore().set("a", "b")
    reduce(dist)
    disttrace.uninstall()
    dist.HashStore().set("a", "b")
    reduce(dist)
    for owner, name in names:
        setattr(owner, name, kept[owner, name])
    reduce(dist)
    work: Any = dist.all_reduce(torch.ones(1), async_op=True)
    work.wait()
    say(calls=sorted(set(calls)), reduced=reduce(dist), installed=disttrace.is_installed())


def life_of_everything(dist: Any) -> None:
    """Stores, groups, works, futures and subclasses die when they did, in the same order."""
    order: list[str] = []
    store: Any = dist.HashStore()
    prefix: Any = dist.PrefixStore("a", store)
    other: Any = dist.new_group([0])
    work: Any = dist.all_reduce(torch.ones(2), group=other, async_op=True)
    future: Any = work.get_future()
    things = {"store": store, "prefix": prefix, "group": other, "work": work}
    for name, thing in things.items():
        weakref.finalize(thing, order.append, name)
    del thing, things
    work.wait()
    del store
    del prefix
    order.append("-")
    del work
    order.append("-")
    del future
    dist.destroy_process_group(other)
    del other
    gc.collect()
    say(order=order)


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


def names_of_groups() -> None:
    """Names, tags, descriptions and numbers of groups are given as they were."""
    from torch.distributed import distributed_c10d as c10d

    group()
    made: list[Any] = [dist.new_group([0], group_desc=f"mine {n}") for n in range(5)]
    world: Any = c10d._world
    for one in (dist.group.WORLD, *made):
        say(name=one.group_name, desc=one.group_desc, rank=one.rank(), size=one.size())
        say(tag=world.pg_to_tag.get(one), config=dist.get_backend_config(one), text=type(one))
    say(names=sorted(world.pg_names.values()), count=world.group_count)


def meshes_and_tensors() -> None:
    """Device meshes and DTensors: layouts, values and texts."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

    group()
    mesh = init_device_mesh("cpu", (1,), mesh_dim_names=("data",))
    tensor: DTensor = distribute_tensor(torch.arange(6.0), mesh, [Shard(0)])
    other = tensor.redistribute(mesh, [Replicate()])
    summed = (tensor + 1).sum().full_tensor() if hasattr(DTensor, "full_tensor") else 0
    say(mesh=mesh, placements=(tensor.placements, other.placements), summed=summed)
    say(text=repr(tensor), local=other.to_local().tolist())


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
