"""Reads the fields of a c10d call from its arguments, once for each key (``keys.py``).

Nothing here touches a tensor's values or synchronises a device.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from disttrace import errors
from disttrace.capture.calls.operations import Row

_Tensor = torch.Tensor
_T = TypeVar("_T")

# Keyword names of the overloads, by what they mean, where that is not their name.
_SLOTS: Mapping[str, tuple[str, ...]] = {
    "data": ("tensors", "tensor", "arg0"),
    "outputs": ("output", "output_tensor", "output_tensors", "output_lists", "outputTensor"),
    "inputs": ("input", "input_tensor", "input_tensors", "input_list", "inputTensor"),
    "output_splits": ("output_split_sizes",),
    "input_splits": ("input_split_sizes",),
    "options": ("opts",),
    "peer": ("dstRank", "srcRank"),
    "tag": ("arg1",),
    "wait_all": ("wait_all_ranks",),
}
_KEYWORDS = {name: slot for slot, names in _SLOTS.items() for name in names}


@dataclass(frozen=True, slots=True)
class Signature:
    """Everything a call record says of the arguments."""

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


def read(row: Row, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Signature:
    """All fields of one call. Works for every overload of every supported torch."""
    named = _named(row, args, kwargs)
    options = named.get("options")
    sent, received = _tensors(row, named)
    return signature(
        sent,
        received,
        device=_options_device(options),
        asynchronous=getattr(options, "asyncOp", None),
        splits=_splits(named),
        reduce_op=reduce_op_name(_first(named.get("op"), getattr(options, "reduceOp", None))),
        root=_integer(_first(named.get("root"), getattr(options, "rootRank", None))),
        peer=_integer(named.get("peer")),
        tag=_integer(named.get("tag")),
        args=_rest(named, sent, received),
    )


def signature(
    sent: list[Any], received: list[Any], *, device: str | None = None, **further: Any
) -> Signature:
    """A signature over tensors passed in, or filled where nothing is; ``device`` where none is.

    ``further`` are its other fields.
    """
    told = sent or received
    sizes = _told(_bytes, told)
    devices = _told(lambda tensor: str(tensor.device.type), told[:1])
    return Signature(
        device=devices[0] if devices else device,
        shapes=_told(_shape, told),
        dtypes=_told(lambda tensor: str(tensor.dtype).removeprefix("torch."), told),
        bytes=sum(sizes) if sizes else None,
        **further,
    )


def _told(question: Callable[[Any], _T], tensors: list[Any]) -> list[_T] | None:
    """An answer for each tensor; None without any, or where a subclass's own property raises."""
    try:
        return [question(tensor) for tensor in tensors] or None
    except Exception as error:
        if not errors.is_ours(error):
            raise
        return None


def _shape(tensor: Any) -> list[int]:
    return [int(length) for length in tensor.shape]


def reduce_op_name(op: Any) -> str | None:
    """``SUM`` for ``ReduceOp.SUM`` in any of its forms."""
    if op is None:
        return None
    name = getattr(op, "name", None)
    if isinstance(name, str):
        return name
    # A ReduceOp object: its text is "<RedOpType.SUM: 0>".
    text = repr(getattr(op, "op", op))
    return text.partition(".")[2].partition(":")[0].strip("<> ") or text


def _named(row: Row, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments by meaning; options, operation and time-out are told apart by their types."""
    named: dict[str, Any] = {}
    for position, value in enumerate(args):
        slot = row.layout[position] if position < len(row.layout) else "rest"
        named[_slot(slot, value)] = value
    for name, value in kwargs.items():
        named[_slot(_KEYWORDS.get(name, name), value)] = value
    return named


def _slot(slot: str, value: Any) -> str:
    if slot in ("data", "outputs", "inputs"):
        return slot
    if isinstance(value, datetime.timedelta):
        return "timeout"
    if _is_options(value):
        return "options"
    if hasattr(value, "RedOpType") or type(value).__name__ in ("RedOpType", "ReduceOp"):
        return "op"
    return slot


def _is_options(value: Any) -> bool:
    return type(value).__name__.endswith("Options")


def _tensors(row: Row, named: Mapping[str, Any]) -> tuple[list[Any], list[Any]]:
    """Tensors passed in, and tensors that are only filled."""
    if "data" in row.layout:
        return list(flat(named.get("data"))), []
    return list(flat(named.get("inputs"))), list(flat(named.get("outputs")))


def flat(value: Any) -> Iterable[Any]:
    """Every tensor in nested lists."""
    if isinstance(value, _Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from flat(item)


def _bytes(tensor: Any) -> int:
    try:
        return int(tensor.numel() * tensor.element_size())
    except RuntimeError:  # a sparse or nested tensor has no such size
        return 0


def _splits(named: Mapping[str, Any]) -> list[list[int]] | None:
    """[input split sizes, output split sizes], as passed (empty: even)."""
    if "input_splits" not in named:
        return None
    return [[int(n) for n in named.get(side) or []] for side in ("input_splits", "output_splits")]


def _rest(named: Mapping[str, Any], sent: list[Any], received: list[Any]) -> dict[str, Any] | None:
    rest: dict[str, Any] = {}
    if sent and received:
        rest["output_shapes"] = _told(_shape, received)
    timeout = named.get("timeout")
    if isinstance(timeout, datetime.timedelta):
        rest["timeout"] = timeout.total_seconds()
    if named.get("wait_all") is not None and isinstance(named["wait_all"], bool):
        rest["wait_all_ranks"] = named["wait_all"]
    return rest or None


def _options_device(options: Any) -> str | None:
    device = getattr(options, "device", None)
    return getattr(device, "type", None)


def _first(*values: Any) -> Any:
    return next((value for value in values if value is not None), None)


def _integer(value: Any) -> int | None:
    return int(value) if isinstance(value, int) and not isinstance(value, bool) else None
