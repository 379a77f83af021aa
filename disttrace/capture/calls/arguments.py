"""Reads the fields of a c10d call from its arguments, once for each key (``call_key.py``).

Nothing here touches a tensor's values or synchronises a device.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, TypeVar

import torch

from disttrace import errors
from disttrace.capture.calls.operations import Method

_T = TypeVar("_T")

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


class Signature(NamedTuple):
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


def read(row: Method, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Signature:
    """All fields of one call. Works for every overload of every supported torch."""
    named = _named(row, args, kwargs)
    options = named.get("options")
    named.setdefault("root", getattr(options, "rootRank", None))
    named["asynchronous"] = getattr(options, "asyncOp", None)
    reduce_op = reduce_op_name(named.get("op", getattr(options, "reduceOp", None)))
    device = getattr(getattr(options, "device", None), "type", None)
    return of_slots(named, device=device, reduce_op=reduce_op)


def of_slots(
    named: Mapping[str, Any], *, device: str | None = None, reduce_op: str | None = None
) -> Signature:
    """The fields of a call whose arguments are told by meaning; ``device`` where no tensor is.

    Shapes are of tensors passed in, or of those filled where nothing is.
    """
    whole = "data" in named  # tensors that are input and output
    sent = list(flat(named.get("data" if whole else "inputs")))
    received = [] if whole else list(flat(named.get("outputs")))
    told = sent or received
    sizes = _told(_bytes, told)
    devices = _told(lambda tensor: str(tensor.device.type), told[:1])
    return Signature(
        device=devices[0] if devices else device,
        asynchronous=named.get("asynchronous"),
        shapes=_told(_shape, told),
        dtypes=_told(lambda tensor: str(tensor.dtype).removeprefix("torch."), told),
        bytes=sum(sizes) if sizes else None,
        splits=_splits(named),
        reduce_op=reduce_op,
        root=_integer(named.get("root")),
        peer=_integer(named.get("peer")),
        tag=_integer(named.get("tag")),
        args=_rest(named, sent, received),
    )


def _told(question: Callable[[Any], _T], tensors: list[Any]) -> list[_T] | None:
    """An answer for each tensor; None without any, or where a subclass's own property raises.

    A mode or a class of the program's is not asked: it would see what the program never did.
    """
    try:
        with torch._C.DisableTorchFunction():
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
    if slot in ("data", "outputs", "inputs"):
        return slot
    if isinstance(value, datetime.timedelta):
        return "timeout"
    kind = type(value).__name__
    if kind.endswith("Options"):
        return "options"
    return "op" if hasattr(value, "RedOpType") or kind in ("RedOpType", "ReduceOp") else slot


def flat(value: Any) -> Iterable[Any]:
    """Every tensor in nested lists."""
    if isinstance(value, torch.Tensor):
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
    if isinstance(named.get("wait_all"), bool):
        rest["wait_all_ranks"] = named["wait_all"]
    return rest or None


def _integer(value: Any) -> int | None:
    return int(value) if isinstance(value, int) and not isinstance(value, bool) else None
