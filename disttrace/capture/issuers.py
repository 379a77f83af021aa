"""Notices the first thing in a process that can issue operations from C++.

Kernels cost microseconds on every operation, so they are put in place only then: before DDP's
reducer and what its constructor calls, and before the operators of functional collectives can be
looked up.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from disttrace.capture import dynamo
from disttrace.capture.context import Capture

FUNCTIONAL = "_c10d_functional"
NAMESPACES = (FUNCTIONAL, "_c10d_functional_autograd", "c10d_functional", "c10d", "symm_mem")
_FUNCTIONS = ("_broadcast_coalesced", "_verify_params_across_processes")


def watch_operators(
    capture: Capture, part: str, appeared: Callable[[], None], namespaces: tuple[str, ...]
) -> None:
    """Call ``appeared`` when one of ``namespaces`` of torch.ops is first looked up; now if it was.

    torch.ops makes a namespace at its first use and keeps it, so this costs nothing later.
    """

    def door(original: Callable[..., Any]) -> Callable[..., Any]:
        def __getattr__(self: Any, name: str) -> Any:
            if name in namespaces:
                _guarded(capture, part, appeared)
            return original(self, name)

        return __getattr__

    def watch(module: Any) -> None:
        capture.engine.attribute(part, module._Ops, "__getattr__", door)
        if any(name in vars(module.ops) for name in namespaces):
            _guarded(capture, part, appeared)

    capture.when_imported("torch._ops", watch)


def watch_reducer(capture: Capture, part: str, appeared: Callable[[], None]) -> None:
    """Call ``appeared`` before DDP's reducer is made, or its constructor talks to the others."""
    import torch._C._distributed_c10d as c10d
    import torch.distributed as dist

    def method(original: Callable[..., Any]) -> Callable[..., Any]:
        def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
            _guarded(capture, part, appeared)
            original(self, *args, **kwargs)

        return __init__

    def function(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            _guarded(capture, part, appeared)
            return original(*args, **kwargs)

        return call

    capture.engine.attribute(part, c10d.Reducer, "__init__", method)
    for name in _FUNCTIONS:
        for module in (dist, c10d):
            if hasattr(module, name):
                capture.engine.value(part, module, name, function(getattr(module, name)))


def _guarded(capture: Capture, part: str, appeared: Callable[[], None]) -> None:
    try:
        with dynamo.unseen():
            appeared()
    except BaseException as error:
        capture.fail(part, error)
