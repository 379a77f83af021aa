"""What tells one call from another, read on every call.

The plain core has a function for each layout of arguments that the public API passes; everything
else (another overload, several tensors, lists of lists) is frozen as a whole, which is slower. The
native core reads any arguments by itself, and learns here only which types are what. Two calls with
one key have the same fields, as ``arguments.read`` reads them.
"""

from __future__ import annotations

import datetime
import inspect
from collections.abc import Callable, Hashable, Mapping
from typing import Any

import torch
import torch._C._distributed_c10d as c10d

from disttrace import foreign
from disttrace.capture.calls.operations import DATA, NOTHING, OUT_IN, PEER, ROOTED, Method

# What ``arguments.read`` reads of torch's options objects (``asyncOp`` from torch 2.6 on).
_OPTION_FIELDS = ("reduceOp", "rootRank", "asyncOp", "device")

ReadKey = Callable[[tuple[Any, ...], Mapping[str, Any]], Hashable]


# Whether a mode or a class of the program's would be asked for what is read of a tensor
# (``__torch_function__``): it must not learn of what the program never asked.
overridden: Callable[[Any], bool] = torch._C._has_torch_function_unary


_of_tensors: Mapping[str, Any] = {
    name: inspect.getattr_static(torch.Tensor, name)
    for name in ("shape", "dtype", "is_cpu", "device")
}
_shape, _dtype, _is_cpu, _device = (one.__get__ for one in _of_tensors.values())


def unasked(tensor: Any) -> Hashable:
    """What tells a tensor from another, read past modes and classes of the program's."""
    with torch._C.DisableTorchFunction():
        return _shape(tensor), _dtype(tensor), _device(tensor)


# A device is asked only where it is not the usual one: the object is made anew on each reading.
# Comparing two ReduceOps costs more than everything else here; their hashes differ.
def _seen(tensor: Any) -> Hashable:
    """The same, where no mode or class would be asked; else it raises TypeError."""
    if overridden(tensor):
        raise TypeError
    return _shape(tensor), _dtype(tensor), _is_cpu(tensor) or _device(tensor)


def _reduced(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Hashable:
    if kwargs:
        raise TypeError
    (tensor,), options = args
    return _seen(tensor), options.asyncOp, hash(options.reduceOp)


def _rooted(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Hashable:
    if kwargs:
        raise TypeError
    (tensor,), options = args
    return _seen(tensor), options.asyncOp, options.rootRank


def _out_in(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Hashable:
    if kwargs:
        raise TypeError
    output, tensor, options = args
    if overridden(output):
        raise TypeError
    return _shape(output), _seen(tensor), options.asyncOp


def _peer(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Hashable:
    if kwargs:
        raise TypeError
    (tensor,), peer, tag = args
    return _seen(tensor), peer, tag


def _nothing(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Hashable:
    (options,) = kwargs.values() if kwargs else args  # barrier passes it by name
    return options.device, options.asyncOp


# By layout, and whether the operation reduces.
_USUAL: Mapping[tuple[tuple[str, ...], bool], ReadKey] = {
    (DATA, True): _reduced,
    (ROOTED, False): _rooted,
    (ROOTED, True): lambda args, kwargs: (_rooted(args, kwargs), hash(args[1].reduceOp)),
    (OUT_IN, False): _out_in,
    (OUT_IN, True): lambda args, kwargs: (_out_in(args, kwargs), hash(args[2].reduceOp)),
    (PEER, False): _peer,
    (NOTHING, False): _nothing,
}


def key_of(row: Method) -> ReadKey:
    """What makes the key of usual calls of ``row``; it raises for calls of another form."""
    return any_key if row.lists else _USUAL.get((row.layout, "reduce" in row.op), any_key)


def any_key(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Hashable:
    """What tells any call from another of the same method."""
    return (
        tuple([freeze(value) for value in args]),  # a generator costs several times as much
        tuple([(name, freeze(value)) for name, value in kwargs.items()]),
    )


def freeze(value: Any) -> Any:
    """What tells ``value`` from another argument of the same call."""
    kind = type(value)
    if id(kind) in _THEMSELVES or value is None:  # a metaclass may hash as it likes
        return value
    if issubclass(kind, torch.Tensor):
        return unasked(value) if overridden(value) else _seen(value)
    if issubclass(kind, (list, tuple)):
        return tuple([freeze(item) for item in foreign.items_of(value)])
    if issubclass(kind, datetime.timedelta):
        return "timeout"
    if issubclass(kind, (int, str, float)):
        return foreign.plain(value)
    name = foreign.type_name(value)
    if name.endswith("Options") and foreign.is_of_library(value, _TORCH):
        fields = (getattr(value, field, None) for field in _OPTION_FIELDS)
        return tuple(tuple(f) if isinstance(f, list) else f for f in fields)
    return name


def kinds() -> dict[type, tuple[str, ...] | bool | type | None]:
    """What the native core must know of types: the attributes of options objects that tell calls
    apart; of types whose hashes do, whether an object of theirs stays as it is, else None, or of
    which type an options object takes one in its place."""
    fields = {
        kind: tuple(name for name in _OPTION_FIELDS if hasattr(kind, name))
        for name, kind in vars(c10d).items()
        if name.endswith("Options") and isinstance(kind, type)
    }
    fixed = (bool, int, torch.device, torch.dtype, datetime.timedelta)
    operations = {c10d.ReduceOp.RedOpType: c10d.ReduceOp, c10d.ReduceOp: None}
    return {**fields, **dict.fromkeys(fixed, True), **operations}


_TORCH = frozenset({"torch"})
_THEMSELVES = frozenset(
    id(kind)
    for kind in (
        *(bool, int, str, float),
        *(torch.device, torch.dtype, c10d.ReduceOp, c10d.ReduceOp.RedOpType),
    )
)
"""Types whose objects stay as they are in a key, and are compared by no code of the program's."""


def of_tensors() -> tuple[Any, ...]:
    """What the native core reads a tensor by, in its order, whatever a subclass has: descriptors,
    the method that gives its storage, and the descriptor of that one's address."""
    address = inspect.getattr_static(torch.UntypedStorage, "_cdata")
    return (*_of_tensors.values(), inspect.getattr_static(torch.Tensor, "untyped_storage"), address)
