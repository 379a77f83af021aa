"""torch: modes, subclasses, profilers, memory and forks see what they saw."""

from __future__ import annotations

import gc
import os
import sys
import threading
import weakref
from collections import Counter
from typing import Any

import torch
import torch.distributed as dist

from reliability.attacks.ground import code_of, forked, group, reduce, say, stall


def function_modes() -> None:
    """A TorchFunctionMode is asked for the program's calls and for nothing else."""
    from torch.overrides import TorchFunctionMode

    seen: Counter[str] = Counter()

    class Counts(TorchFunctionMode):
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            seen[getattr(func, "__qualname__", str(func))] += 1
            return func(*args, **(kwargs or {}))

    dist = group()
    tensor = torch.ones(3)
    with Counts():
        dist.all_reduce(tensor)
        work = dist.all_reduce(tensor, async_op=True)
        assert work is not None
        work.wait()
        dist.broadcast(tensor, 0)
        dist.all_gather([torch.empty(3)], tensor)
        for _ in range(2):  # here torch asks nobody by itself, as it does in the functions
            dist.group.WORLD.allreduce([tensor]).wait()
    say(seen=sorted(seen.items()))


def dispatch_modes() -> None:
    """A TorchDispatchMode sees the same operators as often."""
    from torch.utils._python_dispatch import TorchDispatchMode

    seen: Counter[str] = Counter()

    class Counts(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            seen[str(func)] += 1
            return func(*args, **(kwargs or {}))

    dist = group()
    tensor = torch.ones(3)
    with Counts():
        dist.all_reduce(tensor)
        dist.barrier()
        dist.broadcast(tensor, 0)
    say(seen=sorted(seen.items()))


def tensor_subclasses() -> None:
    """A subclass that counts what it is asked is asked for the program's calls only."""
    seen: Counter[str] = Counter()

    class Mine(torch.Tensor):
        @classmethod
        def __torch_function__(
            cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            seen[getattr(func, "__name__", str(func))] += 1
            return super().__torch_function__(func, types, args, kwargs or {})

    dist = group()
    tensor = torch.ones(3).as_subclass(Mine)
    seen.clear()
    for _ in range(2):
        dist.all_reduce(tensor)
        dist.broadcast(tensor, 0)
    say(seen=sorted(seen.items()))


def properties_that_raise() -> None:
    """A subclass whose shape and device raise is refused, or passes, as it was."""

    class Odd(torch.Tensor):
        @property
        def shape(self) -> Any:
            raise RuntimeError("asked for a shape")

        @property
        def device(self) -> Any:
            raise RuntimeError("asked for a device")

    dist = group()
    tensor = torch.ones(3).as_subclass(Odd)
    for call in (dist.all_reduce, lambda t: dist.broadcast(t, 0)):
        try:
            say(result=call(tensor))
        except Exception as error:
            say(error=error)


def fake_tensors(dist: Any) -> None:
    """Under FakeTensorMode the same happens."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        tensor = torch.ones(3)
        try:
            dist.all_reduce(tensor)
            say(shape=tuple(tensor.shape))
        except Exception as error:
            say(error=type(error).__name__)


def profiled_events(dist: Any) -> None:
    """torch.profiler shows the same operators as often."""
    from torch.profiler import ProfilerActivity, profile

    tensor = torch.ones(3)
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        for _ in range(5):
            dist.all_reduce(tensor)
            tensor += 1
    counted = Counter(event.name for event in profiler.events() or ())
    say(events=sorted((k, v) for k, v in counted.items() if "c10d" in k or "aten" in k))


def life_of_tensors(dist: Any) -> None:
    """A tensor of a Work that nobody waits for lives as long as without us."""
    order: list[int] = []
    for n in range(5):
        tensor = torch.ones(3)
        weakref.finalize(tensor, order.append, n)
        work = dist.all_reduce(tensor, async_op=True)
        assert work is not None
        work.wait()
        count = sys.getrefcount(tensor)
        del work, tensor
    say(order=order, count=count, garbage=len(gc.garbage))


def life_of_groups() -> None:
    """A destroyed group, a store and its port are free at once."""
    port = 0
    for _ in range(3):
        store = dist.TCPStore("127.0.0.1", port, 1, True, wait_for_workers=False)
        port = store.port
        dist.init_process_group("gloo", store=store, rank=0, world_size=1)
        reduce(dist)
        ref = weakref.ref(dist.group.WORLD)
        dist.destroy_process_group()
        del store
        gc.collect()
        say(gone=ref() is None)


def attributes_of_objects(dist: Any) -> None:
    """Types, attributes and texts of groups, stores and Works are torch's."""
    work = dist.all_reduce(torch.ones(2), async_op=True)
    assert work is not None
    for thing in (dist.group.WORLD, work, dist.HashStore()):
        own = sorted(name for name in dir(thing) if not name.startswith("__"))
        say(kind=type(thing), attributes=len(own), dict=sorted(getattr(thing, "__dict__", {})))
        say(bases=[one.__name__ for one in type(thing).__mro__])
    work.wait()
    say(result=work.is_completed(), success=work.is_success())


def patched_by_the_program(dist: Any) -> None:
    """The program puts functions of its own in place, and takes them out again."""
    from unittest import mock

    calls: list[str] = []
    tensor = torch.ones(2)
    with mock.patch.object(dist, "all_reduce", side_effect=lambda *_: calls.append("mine")):
        dist.all_reduce(tensor)
    kept, original = vars(dist.ProcessGroup)["allreduce"], dist.ProcessGroup.allreduce

    def mine(self: Any, *args: Any, **kwargs: Any) -> Any:
        calls.append("method")
        return original(self, *args, **kwargs)

    setattr(dist.ProcessGroup, "allreduce", mine)  # noqa: B010 - not as a type checker knows it
    dist.all_reduce(tensor)
    setattr(dist.ProcessGroup, "allreduce", kept)  # noqa: B010
    dist.all_reduce(tensor)
    say(calls=calls, sum=float(tensor.sum()))


def threads_as_ranks() -> None:
    """torch's own group of threads in one process."""
    from torch.testing._internal.distributed import multi_threaded_pg as threaded

    results: list[float] = []
    world = threaded._install_threaded_pg()
    import torch.distributed as dist

    store = dist.HashStore()

    def rank(n: int) -> None:
        dist.init_process_group("threaded", rank=n, world_size=3, store=store)
        tensor = torch.full((2,), float(n))
        dist.all_reduce(tensor)
        results.append(float(tensor[0]))
        dist.barrier()
        threaded.ProcessLocalGroup.exception_handle(Exception()) if n > 9 else None

    threads = [threading.Thread(target=rank, args=(n,)) for n in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    say(results=results, world=type(world).__name__)
    threaded._uninstall_threaded_pg()
    os._exit(0)


def thousands_of_fake_ranks() -> None:
    """The fake backend at a world size of 4,096."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=7, world_size=4096)
    groups = [dist.new_group(list(range(n, 4096, 64))) for n in range(20)]
    for one in groups:
        dist.all_reduce(torch.ones(2), group=one)
    say(size=dist.get_world_size(), rank=dist.get_rank())


def compiled_whole(dist: Any) -> None:
    """fullgraph=True with a functional collective compiles as often as it did."""
    import torch._dynamo.testing
    import torch.distributed._functional_collectives as functional

    count = torch._dynamo.testing.CompileCounter()

    def whole(x: Any) -> Any:
        return functional.all_reduce(x * 2, "sum", dist.group.WORLD) + 1

    step: Any = torch.compile(whole, backend=count, fullgraph=True)
    for n in range(4):
        result = step(torch.full((3,), float(n)))
    say(frames=count.frame_count, result=result.tolist())


def forks_under_load(dist: Any) -> None:
    """Two hundred forks beside recording threads: each child ends with its code."""
    store = dist.HashStore()
    over = threading.Event()

    def work() -> None:
        while not over.is_set():
            store.set("a", "b")

    threads = [threading.Thread(target=work, daemon=True) for _ in range(3)]
    for thread in threads:
        thread.start()
    codes: Counter[int] = Counter()
    for n in range(200):
        codes[code_of(forked(n % 3))] += 1
    over.set()
    for thread in threads:
        thread.join()
    say(codes=sorted(codes.items()))


def forked_children_that_train() -> None:
    """Forked children make groups of their own, stall, and end by sys.exit."""
    import multiprocessing

    context = multiprocessing.get_context("fork")
    import torch.distributed as dist

    dist.HashStore().set("a", "b")
    children = [context.Process(target=_trains, args=(n,)) for n in range(3)]
    for one in children:
        one.start()
    for one in children:
        one.join(60)
    say(codes=[one.exitcode for one in children])


def _trains(n: int) -> None:
    reduce(group(), 50)
    stall(2)
    sys.exit(n)


def inference_and_devices(dist: Any) -> None:
    """Modes of gradients and the default device are what they were after each call."""
    with torch.inference_mode():
        reduce(dist)
        say(inference=torch.is_inference_mode_enabled())
    with torch.device("meta"):
        empty = torch.ones(2)
        say(device=empty.device.type)
    reduce(dist)
    say(grad=torch.is_grad_enabled(), threads=torch.get_num_threads() > 0)


def contexts_and_logging() -> None:
    """Context variables and loggers are untouched."""
    import contextvars
    import logging

    kept = contextvars.ContextVar("kept", default=0)
    token = kept.set(5)
    dist = group()
    reduce(dist)
    root = logging.getLogger()
    say(kept=kept.get(), handlers=len(root.handlers), level=root.level, disabled=root.disabled)
    kept.reset(token)
    names = [name for name in logging.root.manager.loggerDict if "disttrace" in name]
    say(loggers=names)
