"""Python kernels on operators of torch's dispatcher, put in place and taken out again.

They stand under BackendSelect, which also sees inference mode and compiled graphs, and pass on to
what comes after it. A kernel must not be taken out while it runs: then it stays, and passes
everything on.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

from disttrace.capture import dynamo
from disttrace.capture.context import Capture

KEY = "BackendSelect"
_FAILING = 0  # operations are numbered from 1


class Kernels:
    """The kernels of one part in one namespace of operators."""

    def __init__(self, capture: Capture, part: str, namespace: str) -> None:
        self.off = False
        self.busy: set[int] = set()  # numbers of operations inside a kernel now
        self._capture = capture
        self._part = part
        self._namespace = namespace
        self._library: Any = None
        self._asked = False

    def first(self) -> bool:
        """True for the first who asks: looking operators up brings us here again."""
        first, self._asked = not (self._asked or self.off), True
        return first

    def put(self, name: str, kernel: types.FunctionType) -> None:
        """Have ``kernel(keyset, *arguments)`` called for the operator ``name``."""
        if self._library is None:
            import torch

            self._library = torch.library.Library(self._namespace, "IMPL")
            self._undoable()
        dynamo.skip(kernel.__code__)
        self._library.impl(name, kernel, KEY, with_keyset=True)

    def fail(self, error: BaseException) -> None:
        """A kernel failed, and is still running: it is idle now, and goes when tracing ends."""
        self.busy.add(_FAILING)
        try:
            self._capture.fail(self._part, error)
        finally:
            self.busy.discard(_FAILING)
            self._undoable()

    def remove(self) -> None:
        """Take them out, unless one is running."""
        self.off = True
        if self._library is not None and not self.busy:
            self._library._destroy()
            self._library = None

    def _undoable(self) -> None:
        self._capture.engine.on_undo(self._part, f"{self._namespace} kernels", self.remove)


def redispatch_of(operator: Any) -> Callable[..., Any]:
    """``redispatch(keyset, *arguments)`` of an operator, without a Python frame of its own."""
    handle = getattr(operator, "_handle", None)
    direct: Callable[..., Any] | None = getattr(handle, "redispatch_boxed", None)
    return direct if direct is not None else operator.redispatch


def after_key() -> Any:
    """The keys to pass an operator on with: ``keyset & after_key()``."""
    from torch._C import DispatchKey, _dispatch_keyset_full_after

    return _dispatch_keyset_full_after(DispatchKey.BackendSelect)
