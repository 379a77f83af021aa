"""What tells one call from another, read on every call.

For what the public API passes there is a key per layout of arguments, as source text that
``flat.py`` writes into the wrapper of each method. Everything else (another overload, several
tensors, lists of lists) is frozen as a whole, which is slower. Two calls with one key have the
same fields, as ``arguments.read`` reads them.
"""

from __future__ import annotations

import datetime
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from disttrace.capture.calls.operations import DATA, NOTHING, OUT_IN, PEER, ROOTED, Row

# What the options objects of torch hold that tells calls apart (``asyncOp`` from torch 2.6 on).
_OPTION_FIELDS = ("reduceOp", "rootRank", "rootTensor", "asyncOp", "device", "device_ids")

# What unpacking raises where a call is not of the public API's form.
MISFIT = (ValueError, TypeError, AttributeError)


@dataclass(frozen=True, slots=True)
class Key:
    """How the key of a method's calls is made: source text over ``args``, ``kwargs`` and ``f0``.

    ``unpack`` are statements that raise one of ``MISFIT`` where a call has another form than usual;
    ``parts`` are the expressions of the key; ``passed`` are the arguments as the method gets them.
    """

    unpack: tuple[str, ...]
    parts: tuple[str, ...]
    passed: str


# A device is asked only where it is not the usual one: the object is made anew on each reading.
_TENSOR = ("tensor.shape", "tensor.dtype", "tensor.is_cpu or tensor.device")
_NO_KEYWORDS = "if kwargs: raise TypeError"

_LAYOUTS: Mapping[tuple[str, ...], Key] = {
    DATA: Key((_NO_KEYWORDS, "data, options = args", "(tensor,) = data"), _TENSOR, "data, options"),
    ROOTED: Key(
        (_NO_KEYWORDS, "data, options = args", "(tensor,) = data"),
        (*_TENSOR, "options.rootRank"),
        "data, options",
    ),
    OUT_IN: Key(
        (_NO_KEYWORDS, "output, tensor, options = args"),
        ("output.shape", *_TENSOR),
        "output, tensor, options",
    ),
    PEER: Key(
        (_NO_KEYWORDS, "data, peer, tag = args", "(tensor,) = data"),
        (*_TENSOR, "peer", "tag"),
        "data, peer, tag",
    ),
    NOTHING: Key(
        ("(options,) = kwargs.values() if kwargs else args",),  # barrier passes it by name
        ("tuple(options.device_ids)", "options.device"),
        "*args, **kwargs",
    ),
}


# Where there is no usual form, and for calls that have another.
_ANY = Key(("frozen = slow_key(args, kwargs)",), ("frozen",), "*args, **kwargs")


def key_of(row: Row, *, options_tell: bool, usual: bool = True) -> Key:
    """How to make the key of calls of ``row``: in their usual form or in any.

    ``options_tell``: whether the options objects of this torch say who waits (``asyncOp``); else
    the calling function is asked.
    """
    key = _LAYOUTS.get(row.layout, _ANY) if usual and not row.lists else _ANY
    further: list[str] = []
    if key is not _ANY and "options" in row.layout:
        if "reduce" in row.op:
            # Comparing two ReduceOps costs more than everything else here; their hashes differ.
            # The calling function's own variable would do too, and is hardly cheaper to read.
            further.append("hash(options.reduceOp)")
        if options_tell:
            further.append("options.asyncOp")
    if not options_tell:
        further.append("asynchronous(f0)")
    return Key(key.unpack, (*key.parts, *further), key.passed)


def slow_key(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Hashable:
    """What tells any call from another of the same method."""
    return (
        tuple([freeze(value) for value in args]),  # a generator costs several times as much
        tuple([(name, freeze(value)) for name, value in kwargs.items()]),
    )


def freeze(value: Any) -> Hashable:
    """What tells ``value`` from another argument of the same call."""
    if isinstance(value, torch.Tensor):
        return (value.shape, value.dtype, value.device)
    if isinstance(value, (list, tuple)):
        return tuple([freeze(item) for item in value])
    if value is None or isinstance(value, (int, str, float)):
        return value
    if type(value).__name__.endswith("Options"):
        fields = (getattr(value, name, None) for name in _OPTION_FIELDS)
        return tuple(tuple(f) if isinstance(f, list) else f for f in fields)
    if isinstance(value, datetime.timedelta):
        return "timeout"
    return value if isinstance(value, Hashable) and not callable(value) else type(value).__name__
