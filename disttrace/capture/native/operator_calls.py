"""Calls of torch's operators from Python, seen without a kernel: by the class of the operator. And
what can issue operations from C++, noticed before it does.

A kernel of Python's costs microseconds, for torch boxes what passes it. A call from Python passes
the operator's object first, which gets a class of ours until tracing ends, or inductor comes: that
compiles only what is of torch's own class to the letter, and kernels see the rest. Importing
functional collectives proves nothing (torch.profiler and DTensor do so in programs that never call
one), so whatever else a first call needs can wait for it: kernels are put in place before a
compiled model is loaded, and once operators are looked up. DDP needs none (``capture/ddp``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from disttrace import dynamo
from disttrace.capture.native.kernels import operators, schema_of
from disttrace.capture.wrapping.context import Capture
from disttrace.capture.wrapping.wrappers import Function, after, before

FUNCTIONAL = "_c10d_functional"
AUTOGRAD = "_c10d_functional_autograd"
"""Its operators stand above the keys at which kernels can see them, and issue from there."""

# Operators that communicate say in which group; the others only wait for a result, or wrap it.
_GROUP = "group_name"

Appeared = Callable[[], None]
Which = Callable[[str], Iterable[str]]  # names of operators of a namespace


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


def issuers(namespace: str) -> Iterator[str]:
    """Operators of a namespace that communicate."""
    for name in operators(namespace):
        if any(each.name == _GROUP for each in schema_of(namespace, name).arguments):
            yield name


class OperatorCalls:
    """Operators whose calls from Python pass ``wrap(original)``, called with the operator first.

    ``scripted`` is called before TorchScript gets hold of one, whose calls come from C++, and when
    operators have their own classes again while tracing goes on.
    """

    def __init__(
        self,
        capture: Capture,
        part: str,
        wrap: Callable[[Function], Function],
        scripted: Callable[[], None],
    ) -> None:
        self._capture = capture
        self._part = part
        self._wrap = wrap
        self._scripted = scripted
        self._over = False
        self._armed: list[tuple[Any, type]] = []  # each with the class that it had
        self._classes: dict[type, type] = {}
        capture.engine.on_undo(part, "classes of operators", self.disarm)

        def compiles(_: Any) -> None:
            if not self._over:
                guarded(capture, part, scripted)
                self.disarm()

        capture.when_imported("torch._inductor.ir", compiles)

    def watch(self, namespace: str, which: Which) -> None:
        """Do so with those of ``namespace`` that ``which`` gives, once it is looked up."""

        def arm() -> None:
            for name in () if self._over else which(namespace):
                packet = getattr(getattr(torch.ops, namespace), name)
                self._arm(packet)
                self._arm(packet.default)

        watch_operators(self._capture, self._part, arm, namespace)

    def disarm(self) -> None:
        self._over = True
        for operator, original in self._armed:
            if type(operator) is self._classes[original]:
                operator.__class__ = original

    def _arm(self, operator: Any) -> None:
        original = type(operator)
        if original not in self._classes:
            self._classes[original] = self._class(original)
        self._armed.append((operator, original))
        operator.__class__ = self._classes[original]

    def _class(self, original: Any) -> type:
        call = self._wrap(original.__call__)

        def op(operator: Any) -> Any:
            guarded(self._capture, self._part, self._scripted)
            return original.op.fget(operator)

        body = {"__module__": original.__module__, "__call__": call, "op": property(op)}
        made: type = type(original)(original.__name__, (original,), body)
        return made


def before_cxx_issues(capture: Capture, part: str, appeared: Callable[[], None]) -> None:
    """Call ``appeared`` before whatever issues operations from C++ can do so; of autograd's
    operators, before the first of them is called, in that thread."""

    def trip() -> None:
        appeared()  # whoever comes meanwhile waits in there
        calls.disarm()

    calls = OperatorCalls(
        capture, part, before(capture, part, lambda *_, **__: guarded(capture, part, trip)), trip
    )
    calls.watch(AUTOGRAD, issuers)
    watch(capture, part, appeared)
