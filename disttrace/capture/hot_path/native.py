"""The wrappers of the native core, whose records and look-ups are in C (``_fast.c``)."""

from __future__ import annotations

import functools
import sys
import types
from typing import Any

import torch

from disttrace import errors, foreign, redact
from disttrace.capture.hot_path.call_key import kinds, of_tensors, overridden, unasked
from disttrace.capture.wrapping.context import Capture
from disttrace.capture.wrapping.wrappers import Function, Part
from disttrace.recording.choice import PLAIN
from disttrace.recording.operation import Operation


def read_options(capture: Capture, part: str) -> None:
    """Have the native core read arguments; of torch's options it knows what Python sets."""
    core: Any = capture.recorder.core
    if core.name == PLAIN:
        return
    core.tensor, core.of_tensors, core.kinds = torch.Tensor, of_tensors(), kinds()
    core.overridden, core.unasked = overridden, unasked
    core.modes = torch._C._len_torch_dispatch_stack
    for kind, names in list(core.kinds.items()):
        if not isinstance(names, tuple):
            continue
        for name in names:
            if isinstance(kind.__dict__.get(name), property):
                make = functools.partial(core.option, core, name)
                capture.engine.attribute(part, kind, name, make)
        core.kinds[kind] = tuple(kind.__dict__.get(name, name) for name in names)


def wrapper(
    part: Part, original: Function, name: str, *, torchs: bool = False, **further: Any
) -> Any:
    """What stands in the place of ``original``; None where the plain core has to make it: for the
    program's own Python functions too, which stay functions (to `inspect`, `pickle`, pybind11),
    but not for one of ``torchs``.

    It is a builtin where a builtin stood, and something else for functions of ours: pybind11
    tells by it what is a Python subclass's override. ``further`` says what it begins and reads:
    nothing of a wait, else the ``numbers`` of groups or stores by id(); of a method that issues
    what is ``asynchronous``: says of the calling frame whether its call waits, where options do
    not, and whether it ``tells`` its part of all that it returns; and of one of stores how to
    ``describe`` a call, the texts of known ``keys`` where the first argument is one, the position
    of the ``value`` that is stored (0: none), and whether it ``returns_value``; and of operators
    the ``direct`` call of what is known, whether one of a first argument ``passes`` kernels, and
    whether it ``waits``.
    """
    core: Any = part.capture.recorder.core
    if core.name == PLAIN:
        return None
    if core.plain is None:
        core.plain, core.is_ours = redact.current.plain, foreign.is_ours
        core.take_off = errors.take_off
    inner = getattr(original, "__func__", original)  # pybind11's stand in instance methods
    builtin = isinstance(inner, types.BuiltinFunctionType)
    if not (builtin or torchs or (original.__module__ or "").startswith("disttrace.")):
        return None
    called = inner if builtin else original
    method = core.method(core, name, called)
    method.part = part
    if further:
        method.begin = _begin(part)
    for key, value in further.items():
        setattr(method, key, value)
    return method.builtin(inner.__module__) if builtin else method


def _begin(part: Part) -> Function:
    """Begins a call that was not seen before, called with its arguments by the native core."""
    threads = part.capture.recorder.core.threads

    def begin(owner: Any, /, *args: Any, **kwargs: Any) -> Operation:
        frame = sys._getframe().f_back  # C has none; None where C++ calls without any
        return part.begin(threads.state, frame, owner, *args, **kwargs)

    return begin
