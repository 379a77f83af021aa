"""Notices the first functional collective of a process, before it goes on.

Importing them proves nothing: torch.profiler and DTensor do so in programs that never call one. So
until the first call, the objects of their operators are of a class of ours that reports it. Kernels
that wait would do it too, but they cannot be taken out while other threads communicate: a call that
is under way then ends in torch's own internal error.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from disttrace.capture.native import cxx_callers, functional
from disttrace.capture.wrapping.context import Capture
from disttrace.patching import dynamo

# Its operators stand above the keys at which kernels can see them, and issue from there.
AUTOGRAD = "_c10d_functional_autograd"


def install(
    capture: Capture, part: str, namespaces: tuple[str, ...], called: Callable[[], None]
) -> None:
    """Call ``called`` before the first functional collective of ``namespaces``, in the thread that
    issues it."""
    wires = LazyRegistration(capture, part, called)
    capture.engine.on_undo(part, f"operators of {', '.join(namespaces)}", wires.disarm)
    for namespace in namespaces:
        cxx_callers.watch_operators(capture, part, wires.arming(namespace), (namespace,))


class LazyRegistration:
    """The operators that wait for their first call, each with the class that it had."""

    def __init__(self, capture: Capture, part: str, called: Callable[[], None]) -> None:
        self._capture = capture
        self._part = part
        self._called = called
        self._over = False
        self._armed: list[tuple[Any, type]] = []
        self._classes: dict[type, type] = {}

    def arming(self, namespace: str) -> Callable[[], None]:
        """What makes the operators of ``namespace`` wait, now that it is there."""

        def arm() -> None:
            import torch

            if self._over:
                return
            for name in functional.issuers(namespace):
                packet = getattr(getattr(torch.ops, namespace), name)
                for operator in (packet, packet.default):
                    self._arm(operator)

        return arm

    def disarm(self) -> None:
        """Give every operator its class back."""
        self._over = True
        for operator, original in self._armed:
            if type(operator) is self._classes[original]:
                operator.__class__ = original

    def _arm(self, operator: Any) -> None:
        original = type(operator)
        if original not in self._classes:
            self._classes[original] = _waiting(original, self._trip)
        self._armed.append((operator, original))
        operator.__class__ = self._classes[original]

    def _trip(self) -> None:
        def trip() -> None:
            self._called()  # whoever comes meanwhile waits in there
            self.disarm()

        cxx_callers.guarded(self._capture, self._part, trip)


def _waiting(original: Any, trip: Callable[[], None]) -> type:
    """A class like ``original`` that reports what leads to a call."""

    def __call__(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        trip()
        return original.__call__(self, *args, **kwargs)

    def op(self: Any) -> Any:
        trip()  # TorchScript calls what it finds here without asking the object again
        return original.op.fget(self)

    for function in (__call__, op):
        dynamo.skip(function.__code__)
    body = {"__module__": original.__module__, "__call__": __call__, "op": property(op)}
    made: type = type(original)(original.__name__, (original,), body)
    return made
