"""Python kernels on operators of torch's dispatcher, put in place and taken out again.

They stand under BackendSelect, which also sees inference mode and compiled graphs, or under a key
that only those include who mean them, and pass on to what comes after it. A kernel must not be
taken out while it runs: then it stays, and passes everything on.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

from disttrace.capture.wrapping.context import Capture
from disttrace.journal.originals import RLock

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
        """Put them in place for the first caller; callers meanwhile wait for it.

        An operation that another thread issues must not pass between half of the kernels.
        """
        with self._placing:
            first, self._asked = not (self._asked or self.off), True
            if first:
                self._place(self)

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


def redispatch_of(namespace: str, name: str) -> Callable[..., Any]:
    """``redispatch(keyset, *arguments)`` of an operator, without a Python frame of its own."""
    handle = torch._C._dispatch_find_schema_or_throw(f"{namespace}::{name}", "")
    redispatch: Callable[..., Any] = handle.redispatch_boxed
    return redispatch


def after_key(name: str = KEY) -> Any:
    """The keys to pass an operator on with: ``keyset & after_key()``."""
    from torch._C import _dispatch_keyset_full_after

    return _dispatch_keyset_full_after(torch._C._parse_dispatch_key(name))


@contextlib.contextmanager
def including(name: str) -> Iterator[None]:
    """Have the calling thread come through the kernels of a key, also in what a mode or a tensor
    subclass runs: torch excludes all keys above its own there."""
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
