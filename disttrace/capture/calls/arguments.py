"""Reads the fields of a c10d call from its arguments, once for each key (``call_key.py``).

Nothing here touches a tensor's values or synchronises a device.
"""

from __future__ import annotations

import datetime
import functools
from collections.abc import Callable, Mapping
from inspect import getattr_static
from typing import Any, NamedTuple, TypeVar

import torch

from disttrace import foreign
from disttrace.capture.calls.operations import Method

_T = TypeVar("_T")

_sizes, _dtype, _device = (
    getattr_static(torch.Tensor, name).__get__ for name in ("shape", "dtype", "device")
)
_numel, _element_size = torch.Tensor.numel, torch.Tensor.element_size
_TORCH = frozenset({"torch"})
_REDUCTIONS: dict[int, str] = {}  # by the hash, which is the number, of what torch has few of

# Names in the overloads and in the schemas of operators, by what they mean, where that is not it.
_SLOTS: Mapping[str, tuple[str, ...]] = {
    "data": ("tensors", "tensor", "arg0"),
    "outputs": ("output", "output_tensor", "output_tensors", "output_lists", "outputTensor"),
    "inputs": ("input", "input_tensor", "input_tensors", "input_list", "inputTensor"),
    "output_splits": ("output_split_sizes",),
    "input_splits": ("input_split_sizes",),
    "options": ("opts",),
    "asynchronous": ("async_op", "asyncOp"),
    "op": ("reduce_op",),
    "root": ("root_rank",),
    "peer": ("dstRank", "srcRank", "dst", "src"),
    "tag": ("arg1",),
    "wait_all": ("wait_all_ranks",),
}
_KEYWORDS = {name: slot for slot, names in _SLOTS.items() for name in names}


class CallArguments(NamedTuple):
    """The arguments as a call record holds them."""

    device: str | None = None
    asynchronous: bool | None = None
    shapes: list[list[int]] | None = None
    dtypes: list[str] | None = None
    bytes: int | None = None
    splits: list[list[int]] | None = None
    reduce_op: str | None = None
    root: int | None = None
    peer: int | None = None
    tag: int | None = None
    args: dict[str, Any] | None = None


def read(row: Method, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> CallArguments:
    """All fields of one call. Works for every overload of every supported torch."""
    named = _named(row, args, kwargs)
    options = named.get("options")
    named.setdefault("root", getattr(options, "rootRank", None))
    named["asynchronous"] = getattr(options, "asyncOp", None)
    reduce_op = _reduce_op(named) if "reduce" in row.op else None
    device = getattr(getattr(options, "device", None), "type", None)
    return of_slots(named, device=device, reduce_op=reduce_op)


def reduced(
    row: Method, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[str | None, list[Any]]:
    """How, and which tensors; None: not given."""
    named = _named(row, args, kwargs)
    return _reduce_op(named), flat(named.get("data", named.get("inputs")))


def _reduce_op(named: Mapping[str, Any]) -> str | None:
    return reduce_op_name(named.get("op", getattr(named.get("options"), "reduceOp", None)))


def of_slots(
    named: Mapping[str, Any], *, device: str | None = None, reduce_op: str | None = None
) -> CallArguments:
    """A call by meanings of arguments; ``device`` without tensors. Shapes: inputs, else outputs."""
    whole = "data" in named  # tensors that are input and output
    sent = flat(named.get("data" if whole else "inputs"))
    received = [] if whole else flat(named.get("outputs"))
    told = sent or received
    with torch._C.DisableTorchFunction():
        # A mode or a class of the program's is not asked: it would see what the program never did.
        sizes, devices = _of_each(_bytes, told), _of_each(_device, told[:1])
        return CallArguments(
            device=devices[0].type if devices else device,
            asynchronous=named.get("asynchronous"),
            shapes=_of_each(_shape, told),
            dtypes=_of_each(lambda tensor: _name_of(_dtype(tensor)), told),
            bytes=sum(sizes) if sizes else None,
            splits=_splits(named),
            reduce_op=reduce_op,
            root=foreign.integer(named.get("root")),
            peer=foreign.integer(named.get("peer")),
            tag=foreign.integer(named.get("tag")),
            args=_rest(named, sent, received),
        )


def _of_each(question: Callable[[Any], _T], tensors: list[Any]) -> list[_T] | None:
    """An answer for each tensor; None without any, or where a sparse or nested one has none."""
    try:
        return [question(tensor) for tensor in tensors] or None
    except foreign.ours(Exception):
        return None


def _shape(tensor: Any) -> list[int]:
    return list(map(int, _sizes(tensor)))


@functools.cache
def _name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def reduce_op_name(op: Any) -> str | None:
    """``SUM`` for ``ReduceOp.SUM`` in any of its forms."""
    if op is None:
        return None
    if not foreign.is_of_library(op, _TORCH):
        return None  # torch will refuse it
    name = getattr(op, "name", None)
    if isinstance(name, str):
        return name
    if foreign.type_name(op) != "ReduceOp":
        return repr(op)
    number = hash(op)
    if number not in _REDUCTIONS:  # the text of what it holds is "<RedOpType.SUM: 0>"
        text = repr(getattr(op, "op", op))
        _REDUCTIONS[number] = text.partition(".")[2].partition(":")[0].strip("<> ") or text
    return _REDUCTIONS[number]


def _named(row: Method, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments by meaning; options, operation and time-out are told apart by their types."""
    named: dict[str, Any] = {}
    for position, value in enumerate(args):
        slot = row.layout[position] if position < len(row.layout) else "rest"
        named[_slot(slot, value)] = value
    for name, value in kwargs.items():
        named[_slot(slot_of(name), value)] = value
    return named


def slot_of(name: str) -> str:
    """What an argument of this name means."""
    return _KEYWORDS.get(name, name)


def _slot(slot: str, value: Any) -> str:
    if slot in ("data", "outputs", "inputs") or type(value) is int:
        return slot
    if foreign.is_a(value, datetime.timedelta):
        return "timeout"
    kind = foreign.type_name(value) if foreign.is_of_library(value, _TORCH) else ""
    if kind.endswith("Options"):
        return "options"
    return "op" if kind in ("RedOpType", "ReduceOp") else slot


def flat(value: Any) -> list[Any]:
    """Every tensor in nested lists."""
    if foreign.is_a(value, torch.Tensor):
        return [value]
    if foreign.is_a(value, (list, tuple)):
        return [tensor for item in foreign.items_of(value) for tensor in flat(item)]
    return []


def _bytes(tensor: Any) -> int:
    try:
        return int(_numel(tensor) * _element_size(tensor))
    except foreign.ours(RuntimeError):  # a sparse or nested tensor has no such size
        return 0


def _splits(named: Mapping[str, Any]) -> list[list[int]] | None:
    """[input split sizes, output split sizes], as passed (empty: even)."""
    if "input_splits" not in named:
        return None
    return [foreign.plain(named.get(side)) or [] for side in ("input_splits", "output_splits")]


def _rest(named: Mapping[str, Any], sent: list[Any], received: list[Any]) -> dict[str, Any] | None:
    rest: dict[str, Any] = {}
    if sent and received:
        rest["output_shapes"] = _of_each(_shape, received)
    timeout = named.get("timeout")
    if foreign.is_a(timeout, datetime.timedelta):
        rest["timeout"] = foreign.plain(timeout)
    if type(named.get("wait_all")) is bool:
        rest["wait_all_ranks"] = named["wait_all"]
    return rest or None
