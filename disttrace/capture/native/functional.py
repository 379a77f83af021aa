"""Instrumentation of functional collectives called from Python: what issues them, and their waits.

Each issues an operator ``c10d::*`` from C++. Only a kernel there, or a hook of the group, sees the
Work, and it costs more than the record. So the first call of a signature passes it, and from then
on the call of the operator itself (``kernels.py``) knows what would be recorded. Where a Work has
to be watched, every call passes both.

Of the Work Python sees nothing afterwards: the tensor that holds the result is what people wait
for. Were that not seen, a rank that hangs in such a wait would seem to wait for nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from disttrace import foreign
from disttrace.capture.calls.call_site import CallTable
from disttrace.capture.instrumentation.work import WaitPart
from disttrace.capture.native.kernels import (
    FUNCTIONAL,
    Appeared,
    Kernels,
    OperatorCalls,
    before_cxx_issues,
    issuers,
)
from disttrace.capture.wrapping.context import Capture
from disttrace.capture.wrapping.hot_path import freeze, native_wrapper
from disttrace.capture.wrapping.wrappers import Args, Function, Kwargs, Part, wrap
from disttrace.journal.originals import get_ident
from disttrace.recording.operation import CallRecord, Operation, ThreadState

PART = "waits of functional collectives"
_WAIT = "wait_tensor"

# torch's backend without traffic: what it issues is complete.
_NO_TRAFFIC = {"fake"}


class Issuing(Part):
    """Calls of functional operators that communicate."""

    def __init__(
        self,
        capture: Capture,
        name: str,
        within: Callable[[], AbstractContextManager[None]] = nullcontext,
        scripted: Appeared = lambda: None,
    ) -> None:
        """Calls are made ``within`` what has them seen, and ``scripted`` has those of C++ seen,
        where no hook sees all.
        """
        super().__init__(capture, name)
        self._within = within
        self._calls = CallTable(capture.sites)
        self._issued: dict[int, list[CallRecord]] = {}  # by threads in a functional operator
        self._operators = OperatorCalls(capture, name, self._wrap, scripted)
        for namespace in (FUNCTIONAL, "_dtensor"):
            self._operators.watch(namespace, issuers)
        capture.on_fork.append(self._issued.clear)

    def seen(self, call: CallRecord) -> None:
        """The calling thread issued an operator of ``c10d`` and recorded it."""
        if self._issued:
            issued = self._issued.get(get_ident())
            if issued is not None:
                issued.append(call)

    def returned(self, thread: ThreadState, operation: Operation, result: Any) -> None:
        """It was issued, and ends with a wait for what it returned."""
        if operation.call.device_ends:
            self.capture.works.device.add(operation, None, None)
        else:
            self.capture.works.expect(operation, result)

    def _wrap(self, original: Function) -> Function:
        core, calls, place = self.capture.recorder.core, self._calls, self.capture.sites.place
        threads = core.threads

        def new(operator: Any, /, *args: Any, **kwargs: Any) -> Any:
            """The operator, issued where it is seen from ``c10d`` unless it is recorded."""
            if threads.state.inside or core.off or not (args and _passes(args[0])):
                return original(operator, *args, **kwargs)
            thread, issued = get_ident(), list[CallRecord]()
            outer = self._issued.get(thread)
            self._issued[thread] = issued
            try:
                with self._within():
                    return original(operator, *args, **kwargs)
            finally:
                if outer is None:
                    self._issued.pop(thread, None)
                else:
                    self._issued[thread] = outer
                if len(issued) == 1 and not kwargs:
                    caller = sys._getframe().f_back
                    self.capture.guard(self.name, learn, issued[0], caller, operator, args)

        def key_of(frame: Any, operator: Any, args: Args) -> Hashable:
            values = tuple([freeze(arg) for arg in args])
            return id(operator), core.groups, values, place(frame)

        def learn(call: CallRecord, frame: Any, operator: Any, args: Args) -> None:
            """Remember ``call``, if it is followed without a Work and its begins add nothing."""
            if made is None and frame is not None:
                frame = frame.f_back  # of the wrapper
            if frame is None or not call.whole or not self._is_followed(call):
                return
            if made is None:
                calls.add(key_of(frame, operator, args), call)
            else:
                made.remember(call, frame, operator, *args)

        def begin(_: Any, operator: Any, args: Args, kwargs: Kwargs, frame: Any) -> Any:
            known = args and not kwargs and _passes(args[0])
            call = calls.get(key_of(frame, operator, args)) if known else None
            return call and core.begin(threads.state, call)

        def returned(thread: ThreadState, operation: Operation, *given: Any) -> None:
            core.issued(operation)
            self.returned(thread, operation, given[-1])

        made = native_wrapper(self, new, "__call__", direct=original, passes=_passes)
        return wrap(self, new, begin, returned) if made is None else made

    def _is_followed(self, call: CallRecord) -> bool:
        """Whether operations of ``call`` are followed without a Work."""
        if call.device_ends:
            return self.capture.works.device.by_recorder(call)
        entry = self.capture.groups.by_number(call.group)
        return entry is not None and set(entry.backends.values()) == _NO_TRAFFIC


def _passes(first: Any) -> bool:
    """Whether an operator with this first argument comes to kernels on ``c10d`` from here."""
    return not _modes() and _runs(first)


def _runs(value: Any) -> bool:
    """Whether an operator runs with ``value`` (tensors) as first argument. Where a subclass or a
    mode takes it, whatever that runs is a call of its own."""
    kind = type(value)
    if kind is torch.Tensor:
        return True
    if kind is list:
        return all(map(_runs, value))
    own = foreign.of_class(kind, _DISPATCH)
    return own is None or own is torch.Tensor.__dict__[_DISPATCH]


_DISPATCH = "__torch_dispatch__"
_modes = torch._C._len_torch_dispatch_stack


def install(capture: Capture) -> None:
    """See the waits of Python's, and once C++ may wait, have a kernel there."""

    part = _Waits(capture, PART)

    def place(kernels: Kernels) -> None:
        pass_on = kernels.passing_on(_WAIT)
        kernels.put(_WAIT, part.plainly(pass_on, lambda one: not kernels.off and _runs(one)))

    kernels = Kernels(capture, PART, FUNCTIONAL, place)
    OperatorCalls(capture, PART, part.of_operators, kernels.once).watch(
        FUNCTIONAL, lambda namespace: (_WAIT,)
    )
    before_cxx_issues(capture, PART, kernels.once)

    def imported(module: Any) -> None:
        capture.recorder.core.deferring = getattr(module, "AsyncCollectiveTensor", None)

    capture.when_imported("torch.distributed._functional_collectives", imported)


class _Waits(WaitPart):
    """Waits for a tensor, called with the operator, or its keys, and the tensor."""

    def of_operators(self, original: Function) -> Function:
        """What stands in the place of ``original``, the call of an operator's object."""
        further = {"begin": self._begun(_passes), "passes": _passes, "waits": True}
        made = native_wrapper(self, original, "__call__", torchs=True, **further)
        return self.plainly(original, _passes) if made is None else made

    def plainly(self, original: Function, passes: Callable[[Any], bool]) -> Function:
        """The same by the plain core: recorded if the tensor ``passes`` kernels."""
        begun = self._begun(passes)

        def begin(_: Any, operator: Any, args: Args, *__: Any) -> Operation | None:
            return begun(operator, *args)

        def returned(thread: ThreadState, operation: Operation, *given: Any) -> None:
            self.returned(thread, operation, given[-1])

        return wrap(self, original, begin, returned)

    def _begun(self, passes: Callable[[Any], bool]) -> Callable[..., Operation | None]:
        works, wait_begins = self.capture.works, self.capture.recorder.wait_begins

        def begin(_: Any, /, *args: Any, **__: Any) -> Operation | None:
            if not (works.results and args and passes(args[0])):
                return None
            operation = works.of_result(args[0])  # None where it is over or was never seen
            if operation is not None:
                wait_begins(operation)
            return operation

        return begin

    def returned(self, thread: ThreadState, operation: Operation, work: Any) -> None:
        self.capture.works.over(operation)
        if not operation.call.device_ends:
            self.capture.recorder.end(operation)
