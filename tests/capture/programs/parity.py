"""Every public operation once, right and wrong; one line each: its results or its exception.

    python parity.py plain|traced FOLDER

With `traced`, disttrace records and the kernels for C++-issued operations are in place.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from typing import Any

Case = tuple[str, Callable[[], Any]]


def collectives(dist: Any, torch: Any) -> Iterator[Case]:
    """Right calls of collectives, each on tensors of its own."""

    def x() -> Any:
        return torch.arange(4.0)

    def filled(call: Callable[..., Any], *tensors: Any, **keywords: Any) -> Callable[[], Any]:
        def run() -> Any:
            work = call(*tensors, **keywords)
            if work is not None and hasattr(work, "wait"):
                return work.wait(), tensors
            return work, tensors

        return run

    op = dist.ReduceOp
    yield "all_reduce", filled(dist.all_reduce, x(), op.MAX)
    yield "all_reduce async", filled(dist.all_reduce, x(), async_op=True)
    yield "all_reduce complex", filled(dist.all_reduce, x().to(torch.complex64))
    yield "all_reduce sparse", filled(dist.all_reduce, x().to_sparse())
    yield "all_reduce_coalesced", filled(dist.all_reduce_coalesced, [x(), x()])
    yield "broadcast", filled(dist.broadcast, x(), 0)
    yield "reduce", filled(dist.reduce, x(), 0, op.PRODUCT)
    yield "all_gather", filled(dist.all_gather, [x()], x())
    yield "all_gather_coalesced", filled(dist.all_gather_coalesced, [[x()]], [x()])
    yield "all_gather_into_tensor", filled(dist.all_gather_into_tensor, x(), x())
    yield "gather", filled(dist.gather, x(), [x()], 0)
    yield "scatter", filled(dist.scatter, x(), [x()], 0)
    yield "reduce_scatter", filled(dist.reduce_scatter, x(), [x()])
    yield "reduce_scatter_tensor", filled(dist.reduce_scatter_tensor, x(), x())
    yield "all_to_all", filled(dist.all_to_all, [x()], [x()])
    yield "all_to_all_single", filled(dist.all_to_all_single, x(), x(), [4], [4])
    yield "barrier", dist.barrier
    yield "barrier async", filled(dist.barrier, async_op=True)
    yield "monitored_barrier", dist.monitored_barrier
    yield "all_gather_object", filled(dist.all_gather_object, [None], {"a": 1})
    yield "gather_object", filled(dist.gather_object, "b", [None], 0)
    yield "broadcast_object_list", filled(dist.broadcast_object_list, ["c"], 0)
    yield "scatter_object_list", filled(dist.scatter_object_list, [None], ["d"], 0)
    yield "new_group", lambda: type(dist.new_group([0])).__name__
    functional = torch.ops._c10d_functional
    name = dist.group.WORLD.group_name
    yield ("functional", lambda: functional.wait_tensor(functional.all_reduce(x(), "sum", name)))


def mistakes(dist: Any, torch: Any) -> Iterator[Case]:
    """Wrong calls: torch raises, in Python or in C++, and says the same as ever."""
    x = torch.ones(4)
    world = dist.group.WORLD
    functional = torch.ops._c10d_functional
    yield "no tensor", lambda: dist.all_reduce("text")
    yield "no such root", lambda: dist.broadcast(x, 7)
    yield "send to self", lambda: dist.send(x, 0)
    yield "dtypes", lambda: dist.all_gather([torch.ones(4, dtype=torch.int32)], x)
    yield "sizes", lambda: dist.all_gather([torch.ones(3)], x)
    yield "splits", lambda: dist.all_to_all_single(x, x, [1, 2], [4])
    yield "nothing", lambda: world.allreduce([])
    yield "unknown overload", lambda: world.allreduce(1, 2, 3)
    yield "keyword", lambda: world.allreduce(tensor_list=[x])
    yield "wrong kind of reduction", lambda: dist.all_reduce(x, dist.ReduceOp.BAND)
    yield "functional splits", lambda: _waited(functional, x, world.group_name)
    yield "functional group", lambda: functional.all_reduce(x, "sum", "nobody")
    yield "new_group", lambda: dist.new_group([5])


def _waited(functional: Any, x: Any, name: str) -> Any:
    return functional.wait_tensor(functional.all_to_all_single(x, [1, 2], [4], name))


def stores(dist: Any) -> Iterator[Case]:
    """Store operations, right and wrong."""
    from datetime import timedelta

    store = dist.PrefixStore("p", dist.HashStore())
    yield "set", lambda: store.set("k", "v")
    yield "get", lambda: store.get("k")
    yield "add", lambda: store.add("n", 2)
    yield "check", lambda: store.check(["k", "z"])
    yield "compare_set", lambda: store.compare_set("k", "v", "w")
    yield "wait", lambda: store.wait(["k"])
    yield "wait in vain", lambda: store.wait(["z"], timedelta(milliseconds=50))
    yield "delete_key", lambda: store.delete_key("k")
    yield "append", lambda: store.append("a", "b")
    yield "multi_set", lambda: store.multi_set(["a", "b"], ["c", "d"])
    yield "multi_get", lambda: store.multi_get(["a", "b"])
    yield "wrong type", lambda: store.set(1, 2)
    yield "no key", lambda: store.get()


def say(name: str, case: Callable[[], Any]) -> None:
    """One line, without addresses, and without the dispatcher's list of its kernels, ours too."""
    try:
        text = f"{case()!r}"
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
    text = re.sub(r"0x[0-9a-f]+", "0x", text).partition("Available functions are")[0]
    print(name, "|", " ".join(text.split()), flush=True)


def main(mode: str, folder: str) -> None:
    if mode == "traced":
        import disttrace

        disttrace.install(dir=folder)
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    for cases in (collectives(dist, torch), mistakes(dist, torch), stores(dist)):
        for name, case in cases:
            say(name, case)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
