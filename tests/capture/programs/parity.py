"""Every public operation once, right and wrong; one line each: its results or its exception."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import torch
import torch.distributed

Case = tuple[str, Callable[[], Any]]
dist: Any = torch.distributed  # which is called wrongly, too


def collectives() -> Iterator[Case]:
    """Calls of collectives, each on tensors of its own; wrong functional ones, too."""

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
    yield ("functional splits", lambda: functional.wait_tensor(_split(functional, x(), name)))
    yield "functional group", lambda: functional.all_reduce(x(), "sum", "nobody")


def _split(functional: Any, tensor: Any, name: str) -> Any:
    """With sizes that do not add up."""
    return functional.all_to_all_single(tensor, [1, 2], [4], name)


def stores() -> Iterator[Case]:
    """Store operations, right and wrong."""
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


dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
for cases in (collectives(), stores()):
    for name, case in cases:
        say(name, case)
dist.destroy_process_group()
