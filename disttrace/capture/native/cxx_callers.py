"""Notices what can issue operations from C++, before it does.

Kernels cost microseconds on every operation, so they are put in place only then: before a compiled
model is loaded, and once operators are looked up. DDP needs none (``capture/ddp``). Looking up
those of functional collectives proves nothing yet (see operator_calls.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from disttrace import dynamo
from disttrace.capture.wrapping.context import Capture
from disttrace.capture.wrapping.wrappers import after, before

FUNCTIONAL = "_c10d_functional"

Appeared = Callable[[], None]


def watch_operators(capture: Capture, part: str, appeared: Appeared, namespace: str) -> None:
    """Call ``appeared`` when ``namespace`` of torch.ops is first looked up; now if it was.

    torch.ops makes a namespace at its first use and keeps it, so this costs nothing later.
    """

    def looked_up(found: Any, ops: Any, name: str) -> None:
        if name == namespace:
            guarded(capture, part, appeared)

    def watch(module: Any) -> None:
        wrapper = after(capture, part, looked_up)
        capture.engine.attribute(part, module._Ops, "__getattr__", wrapper)
        if namespace in vars(module.ops):
            guarded(capture, part, appeared)

    capture.when_imported("torch._ops", watch)


def watch(capture: Capture, part: str, appeared: Appeared) -> None:
    """Call ``appeared`` before a model is loaded that was compiled to a library, or a graph of
    inductor's whose wrapper is C++: those call collectives by entry points of C, which pass no
    operator of functional collectives.
    """
    constructor = before(capture, part, lambda *_, **__: guarded(capture, part, appeared))
    libraries = vars(torch._C._aoti).values() if hasattr(torch._C, "_aoti") else ()
    for issuer in (value for value in libraries if isinstance(value, type)):
        capture.engine.attribute(part, issuer, "__init__", constructor)

    def load(cls: Any, *args: Any, **kwargs: Any) -> None:
        if cls.__name__ == "CppWrapperCodeCache":
            guarded(capture, part, appeared)

    def imported(module: Any) -> None:
        loader = getattr(module, "CppPythonBindingsCodeCache", None)
        if loader is not None:
            wrapper = before(capture, part, load)
            capture.engine.function(part, loader.load_pybinding_async.__func__, wrapper)

    capture.when_imported("torch._inductor.codecache", imported)


def guarded(capture: Capture, part: str, appeared: Appeared) -> None:
    """Call ``appeared`` where the program is in the middle of something else."""
    dynamo.call_unseen(capture.guard, part, appeared)
