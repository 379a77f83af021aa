"""Arguments: whatever a program passes to torch is taken or refused as it was, and as soon."""

from __future__ import annotations

import collections
import datetime
import enum
import random
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from reliability.attacks.ground import reduce, say, told

_DRAWN = 700


class _Text(str):
    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        raise ArithmeticError("compared")

    def __hash__(self) -> int:
        raise ArithmeticError("hashed")


class _Number(int):
    def __index__(self) -> int:
        raise ArithmeticError("index")

    def __int__(self) -> int:
        raise ArithmeticError("int")


class _Lies:
    """Says that it is a tensor, and raises whatever it is asked."""

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        import torch

        return torch.Tensor

    def __getattr__(self, name: str) -> Any:
        raise ArithmeticError(name)


class _Meta(type):
    def __hash__(cls) -> int:
        raise ArithmeticError("class hashed")

    def __eq__(cls, other: object) -> bool:
        raise ArithmeticError("class compared")

    def __getattribute__(cls, name: str) -> Any:
        if name in ("__name__", "__module__", "__mro__"):
            raise ArithmeticError(name)
        return super().__getattribute__(name)


class _OfMeta(metaclass=_Meta):
    pass


class _Rank(enum.IntEnum):
    FIRST = 0


def _pool() -> list[Any]:
    """Values of all sorts, made anew."""
    cycle: list[Any] = []
    cycle.append(cycle)
    one = torch.ones(2)
    return [
        None, True, 0, 1, -1, 2**70, 0.5, float("nan"), "", "x", "sum", b"x", bytearray(b"x"),
        memoryview(b"x"), _Text("x"), _Number(0), _Lies(), _OfMeta(), _OfMeta, _Rank.FIRST,
        [], (), {}, cycle, [one], [[one]], (one,), [one, one], [None], ["x"], [one, "x"], [0, 0],
        {"a": one}, {0}, iter([one]), range(2), collections.deque([one]), slice(1), ...,
        one, torch.ones(()), torch.ones(2, dtype=torch.complex64), torch.ones(2, dtype=torch.int8),
        torch.ones(2, requires_grad=True), torch.ones(4)[::2], torch.ones(1).expand(3),
        torch.ones(2, device="meta"), torch.eye(2).to_sparse(), torch.ones(0),
        torch.quantize_per_tensor(torch.ones(2), 1.0, 0, torch.qint8),
        torch.nested.nested_tensor([torch.ones(1), torch.ones(2)]),
        torch.ones(2, dtype=torch.complex64).conj(), torch.nn.Parameter(torch.ones(2)),
        torch.ones(2).to(torch.float8_e4m3fn), torch.device("cpu"), torch.float32, torch.Size([2]),
        datetime.timedelta(milliseconds=80), datetime.timedelta.max, dist.ReduceOp.SUM,
        dist.ReduceOp.BAND, dist.ReduceOp(dist.ReduceOp.MAX), dist.ReduceOp,
        dist.AllreduceOptions(),
        dist.BroadcastOptions(), dist.BarrierOptions(), dist.AllToAllOptions, dist.group.WORLD,
        dist.HashStore(), dist.Work, object(), type, len, lambda: None, ValueError("x"),
        complex(1, 2), "\udcff", "a" * 3000, "password=hunter22",
    ]  # fmt: skip


def _drawn(calls: dict[str, Callable[..., Any]], keywords: list[str], seed: int) -> None:
    """Say what comes of many calls of these with arguments of all sorts, drawn from ``seed``."""
    draw = random.Random(seed)
    names = sorted(calls)
    for n in range(_DRAWN):
        name = draw.choice(names)
        pool = _pool()
        args = [draw.choice(pool) for _ in range(draw.randrange(4))]
        named = {draw.choice(keywords): draw.choice(pool) for _ in range(draw.randrange(3) // 2)}
        say(**{f"{n}_{name}": told(partial(calls[name], *args, **named))})


def functions_of_torch(dist: Any) -> None:
    """Seven hundred calls of the public functions with anything: results, errors and frames."""
    names = ("all_reduce", "broadcast", "reduce", "all_gather", "all_gather_into_tensor", "gather",
             "scatter", "reduce_scatter", "reduce_scatter_tensor", "all_to_all",
             "all_to_all_single", "all_reduce_coalesced", "all_gather_coalesced",
             "broadcast_object_list", "all_gather_object", "gather_object", "scatter_object_list",
             "new_subgroups_by_enumeration", "new_subgroups", "get_rank", "get_world_size",
             "get_process_group_ranks", "isend", "batch_isend_irecv", "P2POp",
             "get_group_rank", "get_global_rank", "get_backend")  # fmt: skip
    keywords = ["tensor", "op", "group", "async_op", "src", "dst", "input", "output", "tag",
                "tensor_list", "object_list", "obj", "timeout", "nothing"]  # fmt: skip
    _drawn({name: getattr(dist, name) for name in names}, keywords, 1)
    say(reduced=reduce(dist))


def methods_of_groups(dist: Any) -> None:
    """The same of the methods of a group, a backend and a Work."""
    world: Any = dist.group.WORLD
    backend: Any = world._get_backend(torch.device("cpu"))
    calls: dict[str, Any] = {}
    holders = ((world, "g"), (backend, "b"), (dist.ProcessGroup, "P"), (dist.Work, "W"))
    for holder, prefix in holders:
        for name in ("allreduce", "broadcast", "reduce", "allgather", "_allgather_base", "gather",
                     "scatter", "reduce_scatter", "_reduce_scatter_base", "alltoall",
                     "alltoall_base", "barrier", "send", "allreduce_coalesced", "wait",
                     "is_completed", "allgather_into_tensor_coalesced"):  # fmt: skip
            if hasattr(holder, name):
                calls[f"{prefix}_{name}"] = getattr(holder, name)
    keywords = ["tensors", "opts", "op", "root", "tag", "timeout", "output", "input", "dstRank"]
    _drawn(calls, keywords, 2)
    say(reduced=reduce(dist))


def methods_of_stores() -> None:
    """The same of stores, with and without a prefix, and of their classes."""
    import tempfile

    stores: list[tuple[str, Any]] = [
        ("h", dist.HashStore()), ("p", dist.PrefixStore("a", dist.HashStore())),
        ("f", dist.FileStore(tempfile.mkdtemp() + "/s", 1)),
        ("t", dist.TCPStore("127.0.0.1", 0, 1, True, wait_for_workers=False)),
    ]  # fmt: skip
    calls: dict[str, Any] = {"H": dist.HashStore, "F": dist.FileStore, "P": dist.PrefixStore}
    for prefix, store in stores:
        store.set_timeout(datetime.timedelta(milliseconds=30))
        for name in ("set", "get", "add", "check", "compare_set", "wait", "delete_key", "num_keys",
                     "append", "multi_get", "multi_set", "list_keys", "queue_push", "queue_pop",
                     "queue_len"):  # fmt: skip
            if hasattr(store, name):
                calls[f"{prefix}_{name}"] = getattr(store, name)
    keywords = ["key", "value", "keys", "timeout", "arg0", "key_prefix", "block"]
    _drawn(calls, keywords, 3)


def _soon(calls: list[Callable[[], Any]]) -> None:
    """Say what comes of each, and whether that came soon."""
    for n, call in enumerate(calls):
        began = time.monotonic()
        what = told(call)
        say(n=n, what=what, soon=time.monotonic() - began < 5)


def lists_that_hold_each_other(dist: Any) -> None:
    """Lists of which each holds the one before twice are refused at once, as they were."""
    deep: Any = torch.ones(1)
    numbers: Any = [0]
    for _ in range(40):
        deep, numbers = [deep, deep], [numbers, numbers]
    calls: list[Callable[[], Any]] = [
        lambda: dist.all_gather(deep, torch.ones(1)), lambda: dist.all_to_all(deep, deep),
        lambda: dist.new_group(numbers), lambda: dist.new_subgroups_by_enumeration(numbers),
        lambda: dist.batch_isend_irecv(deep), lambda: dist.new_subgroups(numbers),
        lambda: dist.init_process_group("gloo", rank=numbers),
        lambda: dist.scatter_object_list([None], deep), lambda: dist.all_gather_object(deep, 1),
        lambda: dist.broadcast_object_list(deep), lambda: dist.send_object_list(deep, 0),
        lambda: dist.gather_object(1, deep), lambda: dist.split_group(None, numbers),
        lambda: dist.destroy_process_group(numbers),
    ]  # fmt: skip
    _soon(calls)  # others of torch's put all of it into their errors


def large_arguments(dist: Any) -> None:
    """Keys, lists and numbers of a million pieces cost what they cost."""
    store = dist.HashStore()
    many = list(range(1_000_000))
    texts = [f"key/{n}" for n in range(100_000)]
    token = "sk-" + "a1B2" * 1_000_000
    calls: list[Callable[[], Any]] = [
        lambda: store.set("k" * 10_000_000, "v"), lambda: store.set(token, token),
        lambda: store.set("=".join(["password"] * 1_000_000), "v"), lambda: store.check(texts),
        lambda: store.multi_set(texts, texts), lambda: store.multi_get(texts),
        lambda: store.wait(texts), lambda: dist.new_group(many),
        lambda: dist.new_subgroups_by_enumeration([many]),
        lambda: dist.new_group([0], group_desc="d" * 5_000_000),
        lambda: dist.all_to_all_single(torch.ones(1), torch.ones(1), many, many),
        lambda: dist.batch_isend_irecv(many),
        lambda: dist.all_gather([torch.ones(1)] * 100_000, torch.ones(1)),
        lambda: dist.init_process_group("gloo", rank=10**5000),
        lambda: dist.init_process_group("gloo" * 1_000_000),
        lambda: dist.init_process_group("gloo", init_method="tcp://" + "h" * 3_000_000),
        lambda: dist.broadcast(torch.ones(1), 10**5000),
        lambda: dist.PrefixStore("p" * 5_000_000, store),
        lambda: dist.all_gather_object([None] * 1_000_000, 1), lambda: store.add("n", 2**63 - 1),
    ]  # fmt: skip
    _soon(calls)
