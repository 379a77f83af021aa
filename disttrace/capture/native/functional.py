"""Instrumentation of functional collectives: what issues them, and ``wait_tensor``.

Each issues an operator ``c10d::*`` from C++. A kernel there costs three times what one on the
functional operator does, whose arguments are plain, and it alone sees the Work. So the first call
of a signature passes both, and from then on the functional operator's kernel knows what the other
would record. Where a Work has to be watched, every call passes both.

Of the Work Python sees nothing afterwards: the tensor that holds the result is what people wait
for. Without a kernel there, a rank that hangs in such a wait would seem to wait for nothing.
"""

from __future__ import annotations

import sys
import threading
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch

from disttrace import errors
from disttrace.capture.calls.call_table import Calls
from disttrace.capture.hot_path.call_key import freeze
from disttrace.capture.native import cxx_callers
from disttrace.capture.native.kernels import (
    WITHIN,
    Kernels,
    after_key,
    dispatch_key,
    operators,
    redispatch_of,
    schema_of,
)
from disttrace.capture.wrapping.context import Capture
from disttrace.recording.choice import PLAIN
from disttrace.recording.operation import Call, Operation

PART = "waits of functional collectives"
NAMESPACES = (cxx_callers.FUNCTIONAL, "_dtensor")
_WAIT = "wait_tensor"

# Operators that communicate say in which group; the others only wait for a result, or wrap it.
_GROUP = "group_name"
# torch's backend without traffic: what it issues is complete.
_NO_TRAFFIC = {"fake"}


def issuers(namespace: str) -> Iterator[str]:
    """Names of the operators of a namespace that communicate."""
    for name in operators(namespace):
        if any(argument.name == _GROUP for argument in schema_of(namespace, name).arguments):
            yield name


class Issuing:
    """Kernels on the functional operators that communicate."""

    def __init__(self, capture: Capture, part: str) -> None:
        self._capture = capture
        self._part = part
        self._kernels = {name: Kernels(capture, part, name) for name in NAMESPACES}
        core: Any = capture.recorder.core
        self._calls = Calls(capture.sites)
        self._find: Callable[..., Call | None] = (
            self._find_plainly if core.name == PLAIN else core.find
        )
        self._issued: dict[int, list[Call]] = {}  # by threads in a functional operator
        capture.on_fork += [self._calls.forget, self._issued.clear]

    def place(self) -> None:
        """Put all of them in place; those of the key WITHIN must stand by then."""
        for namespace, kernels in self._kernels.items():
            for name in issuers(namespace):
                kernels.put_counting(name, self._kernel(kernels, namespace, name))

    def seen(self, call: Call) -> None:
        """The calling thread issued an operator of ``c10d`` and recorded it."""
        if self._issued:
            issued = self._issued.get(threading.get_ident())
            if issued is not None:
                issued.append(call)

    def _kernel(self, kernels: Kernels, namespace: str, name: str) -> Callable[..., Any]:
        part, fail, failed = self._part, self._capture.fail, self._capture.failed
        recorder, works, threads = (
            self._capture.recorder,
            self._capture.works,
            self._capture.recorder.threads,
        )
        begin, issued, find = recorder.begin, recorder.issued, self._find
        redispatch, after, within = redispatch_of(namespace, name), after_key(), self._within
        names = [argument.name for argument in schema_of(namespace, name).arguments]
        at, number_of, running = names.index(_GROUP), self._group_number(), kernels.running

        def done(operation: Operation, result: Any) -> None:
            issued(operation)
            if operation.call.device_ends:
                works.on_device(operation, None, None)
            else:
                works.expect(operation, result)

        def kernel(keyset: Any, *args: Any, **kwargs: Any) -> Any:
            running.append(None)
            try:
                thread = threads.state
                if thread.inside or kernels.off:
                    return redispatch(keyset & after, *args, **kwargs)
                operation = key = None
                try:
                    group = None if kwargs else number_of(args[at])
                    if group is not None:
                        key = name, group, args, sys._getframe(1)
                        call = find(*key)
                        if call is not None:
                            operation = begin(thread, call)
                except BaseException as error:
                    fail(part, error)
                if operation is None:
                    return within(key, redispatch, keyset & after, args, kwargs)
                try:
                    thread.inside = True
                    result = redispatch(keyset & after, *args)
                except BaseException as error:
                    thread.inside = False
                    failed(part, operation, error)
                    raise
                thread.inside = False
                try:
                    done(operation, result)
                except BaseException as error:
                    fail(part, error)
                return result
            finally:
                running.pop()

        return kernel

    def _within(
        self,
        key: Any,
        redispatch: Callable[..., Any],
        keyset: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Have the operator issued where the kernels on ``c10d`` see it, and learn of them."""
        included, include = (
            torch._C._dispatch_tls_is_dispatch_key_included,
            torch._C._dispatch_tls_set_dispatch_key_included,
        )
        within, thread, issued = dispatch_key(WITHIN), threading.get_ident(), list[Call]()
        outer, was_included = self._issued.get(thread), included(within)
        self._issued[thread] = issued
        include(within, True)
        try:
            return redispatch(keyset, *args, **kwargs)
        finally:
            include(within, was_included)
            if outer is None:
                self._issued.pop(thread, None)
            else:
                self._issued[thread] = outer
            if key is not None and len(issued) == 1 and self._is_enough(issued[0]):
                self._find(*key, issued[0])

    def _find_plainly(
        self,
        name: str,
        group: int,
        values: tuple[Any, ...],
        frame: types.FrameType,
        call: Call | None = None,
    ) -> Call | None:
        """The call of an operator with these arguments at this place; ``call`` from now on."""
        place = self._capture.sites.place(frame)
        key = name, group, tuple([freeze(value) for value in values]), place
        if call is not None:
            self._calls.add(key, call)
        return self._calls.get(key)

    def _group_number(self) -> Callable[[Any], int | None]:
        """Gives the number of the group that an operator names; None where it is not known yet."""
        from torch._C._distributed_c10d import _resolve_process_group

        entry_of = self._capture.groups.get

        def number(name: Any) -> int | None:
            try:
                entry = entry_of(id(_resolve_process_group(name) if type(name) is str else name))
            except Exception as error:  # nobody's name: torch will say so
                if not errors.is_ours(error):
                    raise
                return None
            return None if entry is None or entry.n < 1 else entry.n

        return number

    def _is_enough(self, call: Call) -> bool:
        """Whether operations of ``call`` are followed to their ends without a Work."""
        if call.device_ends:
            return self._capture.works.by_recorder(call)
        entry = self._capture.groups.by_number(call.group)
        return entry is not None and set(entry.backends.values()) == _NO_TRAFFIC


def install(capture: Capture) -> None:
    """Put a kernel on the wait when functional collectives appear."""
    kernels = Kernels(capture, PART, cxx_callers.FUNCTIONAL)

    def place() -> None:
        kernels.put_counting(_WAIT, _wait_kernel(capture, kernels))

    def appeared() -> None:
        kernels.once(place)

    cxx_callers.watch_operators(capture, PART, appeared, (cxx_callers.FUNCTIONAL,))


def _wait_kernel(capture: Capture, kernels: Kernels) -> Callable[..., Any]:
    redispatch, after = redispatch_of(cxx_callers.FUNCTIONAL, _WAIT), after_key()
    recorder, works, running = capture.recorder, capture.works, kernels.running
    end, wait_begins, of_result, over = (
        recorder.end,
        recorder.wait_begins,
        works.of_result,
        works.over,
    )

    def wait_tensor(keyset: Any, tensor: Any) -> Any:
        running.append(None)
        try:
            operation = None
            try:
                if not kernels.off:
                    # None where the operation is over or was never seen.
                    operation = of_result(tensor)
                    if operation is not None:
                        wait_begins(operation)
            except BaseException as error:
                capture.fail(PART, error)
            if operation is None:
                return redispatch(keyset & after, tensor)
            try:
                result = redispatch(keyset & after, tensor)
            except BaseException as error:
                over(operation)
                capture.failed(PART, operation, error, on_issue=False)
                raise
            try:
                over(operation)
                if not operation.call.device_ends:
                    end(operation)
            except BaseException as error:
                capture.fail(PART, error)
            return result
        finally:
            running.pop()

    return wait_tensor
