"""The wrapper of a method that is called all the time, made by the core that is in use.

The native one is a builtin where a builtin stood, and something else where a Python function did:
pybind11 tells by it what is a Python subclass's override.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Mapping
from typing import Any

import torch

from disttrace import errors, redact
from disttrace.capture.hot_path import plain
from disttrace.capture.hot_path.call_key import ReadKey, kinds, of_tensors
from disttrace.capture.wrapping.context import Capture
from disttrace.capture.wrapping.wrappers import Function, Part
from disttrace.recording.choice import PLAIN


def read_options(capture: Capture, part: str) -> None:
    """Have the native core read arguments; of torch's options it knows what Python sets."""
    core: Any = capture.recorder.core
    if core.name == PLAIN:
        return
    core.tensor, core.of_tensors, core.kinds = torch.Tensor, of_tensors(), kinds()
    for kind, names in list(core.kinds.items()):
        if not isinstance(names, tuple):
            continue
        for name in names:
            if isinstance(kind.__dict__.get(name), property):
                make = functools.partial(core.option, core, name)
                capture.engine.attribute(part, kind, name, make)
        core.kinds[kind] = tuple(kind.__dict__.get(name, name) for name in names)


def issuing(
    part: Part,
    original: Function,
    owner: type,
    name: str,
    *,
    read_key: ReadKey,
    asynchronous: Callable[[Any], bool | None] | None,
) -> Any:
    """What stands in the place of ``original``, a method that issues a collective or a message.

    ``asynchronous`` says of the calling frame whether its call waits, where options do not.
    """
    if _is_plain(part):
        return plain.issuing(
            part, original, owner, name, read_key=read_key, asynchronous=asynchronous
        )
    entries = part.capture.groups.entries
    return _native(part, original, name, entries=entries, asynchronous=asynchronous)


def storing(
    part: Part,
    original: Function,
    owner: type,
    name: str,
    *,
    describe: plain.Describe,
    form: Mapping[str, Any],
) -> Any:
    """The same for a method of stores.

    ``form`` says what the native core reads by itself: ``keys``, the texts of known keys where the
    first argument is one, the position of the ``value`` that is stored (0: none), and whether it
    ``returns_value``.
    """
    if _is_plain(part):
        returns = bool(form["returns_value"])
        return plain.storing(part, original, owner, name, describe=describe, returns=returns)
    entries = part.capture.stores.entries
    return _native(part, original, name, entries=entries, describe=describe, **form)


def waiting(part: Part, original: Function, owner: type, name: str) -> Any:
    """The same for a Work's ``wait``."""
    if _is_plain(part):
        return plain.waiting(part, original, owner, name)
    return _native(part, original, name)


def _is_plain(part: Part) -> bool:
    return part.capture.recorder.core.name == PLAIN


def _native(part: Part, original: Function, name: str, **further: Any) -> Any:
    core: Any = part.capture.recorder.core
    if core.plain is None:
        core.plain = redact.current.plain
    inner = getattr(original, "__func__", original)  # pybind11's stand in instance methods
    builtin = isinstance(inner, types.BuiltinFunctionType)
    called = inner if builtin else original
    method = core.method(core, name, called, part, errors.is_ours)
    for key, value in further.items():
        setattr(method, key, value)
    return method.builtin(inner.__module__) if builtin else method
