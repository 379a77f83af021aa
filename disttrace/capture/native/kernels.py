"""Torch's operators: Python kernels on them, calls from Python that are seen without one, and what
can issue operations from C++, noticed before it does.

Kernels stand under BackendSelect, which also sees inference mode and compiled graphs, or under a
key that only those include who mean them, and pass on to what comes after it. A kernel must not be
taken out while it runs: then it stays, and passes everything on.

A kernel of Python's costs microseconds, for torch boxes what passes it. A call from Python passes
the operator's object first, which gets a class of ours until tracing ends, or inductor comes: that
compiles only what is of torch's own class to the letter, and kernels see the rest. Importing
functional collectives proves nothing (torch.profiler and DTensor do so in programs that never call
one), so whatever else a first call needs can wait for it: kernels are put in place before a
compiled model is loaded, and once operators are looked up. DDP needs none (``before_2_15``).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch._C import _dispatch_keyset_full_after

from disttrace import dynamo
from disttrace.capture.wrapping.context import Capture
from disttrace.capture.wrapping.wrappers import Function, after, before
from disttrace.journal.originals import RLock, patient

KEY = "BackendSelect"
WITHIN = "VmapMode"
"""A key that no tensor has, and that passes on whatever has no kernel of it. A thread that includes
it comes through the kernels that stand there, and no other thread does."""


class Kernels:
    """The kernels of one part in one namespace of operators."""

    def __init__(
        self,
        capture: Capture,
        part: str,
        namespace: str,
        place: Callable[[Kernels], None],
        key: str = KEY,
    ) -> None:
        self.off = False
        self.key = key
        self._capture = capture
        self._part = part
        self._namespace = namespace
        self._place = place
        self._library: Any = None
        self._asked = False
        self._placing = RLock()  # a signal handler may issue, too
        self._running: list[None] = []  # one entry for each kernel that runs now, on any thread
        capture.on_fork.append(self._forked)

    def once(self) -> None:
        """Put them in place for the first caller; threads that issue meanwhile wait for it."""
        with patient(self._placing):
            first, self._asked = not (self._asked or self.off), True
            if first:
                self._place(self)

    def passing_on(self, name: str) -> Callable[..., Any]:
        """Passes the keys and arguments with which a kernel was called on to what is behind it."""
        handle = torch._C._dispatch_find_schema_or_throw(f"{self._namespace}::{name}", "")
        redispatch = handle.redispatch_boxed
        behind = _dispatch_keyset_full_after(torch._C._parse_dispatch_key(self.key))

        def pass_on(keyset: Any, *args: Any) -> Any:
            return redispatch(keyset & behind, *args)

        return pass_on

    def put(self, name: str, traced: Callable[..., Any]) -> None:
        """Have ``traced(keyset, *arguments)`` called for the operator ``name``."""
        running = self._running

        def kernel(*args: Any) -> Any:
            running.append(None)
            try:
                return traced(*args)
            finally:
                running.pop()

        if self._library is None:
            self._library = torch.library.Library(self._namespace, "IMPL")
            self._undoable()
        self._library.impl(name, kernel, self.key, with_keyset=True)

    def remove(self) -> None:
        """Take them out; while one runs they stay, idle, until tracing ends."""
        self.off = True
        if self._library is None:
            return
        if self._running:
            self._undoable()
        else:
            self._library._destroy()
            self._library = None

    def _undoable(self) -> None:
        what = f"{self._namespace} kernels of {self.key}"
        self._capture.engine.on_undo(self._part, what, self.remove)

    def _forked(self) -> None:
        """In a forked child: the thread that held it does not exist here."""
        self._placing = RLock()


def operators(namespace: str) -> Iterator[str]:
    """Names of the operators of a namespace that this torch has, without making torch.ops' own."""
    for qualified in torch._C._dispatch_get_all_op_names():
        found, _, name = qualified.partition("::")
        if found == namespace and "." not in name:
            yield name


def schema_of(namespace: str, name: str) -> Any:
    """The schema of an operator."""
    return torch._C._get_schema(f"{namespace}::{name}", "")


@contextlib.contextmanager
def including(name: str) -> Iterator[None]:
    """Have the thread come through the kernels of a key, also within modes and subclasses."""
    key = torch._C._parse_dispatch_key(name)  # not all of them are attributes of DispatchKey
    included = torch._C._dispatch_tls_is_dispatch_key_included(key)
    excluded = torch._C._dispatch_tls_is_dispatch_key_excluded(key)
    torch._C._dispatch_tls_set_dispatch_key_included(key, True)
    torch._C._dispatch_tls_set_dispatch_key_excluded(key, False)
    try:
        yield
    finally:
        torch._C._dispatch_tls_set_dispatch_key_included(key, included)
        torch._C._dispatch_tls_set_dispatch_key_excluded(key, excluded)


FUNCTIONAL = "_c10d_functional"
AUTOGRAD = "_c10d_functional_autograd"
"""Its operators stand above the keys at which kernels can see them, and issue from there."""

Appeared = Callable[[], None]
Which = Callable[[str], Iterable[str]]  # names of operators of a namespace


def watch_operators(capture: Capture, part: str, appeared: Appeared, namespace: str) -> None:
    """Call ``appeared`` once torch.ops makes ``namespace``, at its first use; now if it has."""

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
        # Those say in which group; the others only wait for a result, or wrap it.
        if any(each.name == "group_name" for each in schema_of(namespace, name).arguments):
            yield name


class OperatorCalls:
    """Operators whose calls from Python pass ``wrap(original)``. ``scripted`` is called before
    TorchScript gets one, and when they have their own classes again while tracing goes on."""

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
