"""Instrumentation of functional collectives called from Python: what issues them, and their waits.

Each issues an operator ``c10d::*`` from C++. Only a kernel there sees the Work, and it costs more
than the record. So the first call of a signature passes that kernel, and from then on the call of
the operator itself (``operator_calls.py``) knows what would be recorded. Where a Work has to be
watched, every call passes both.

Of the Work Python sees nothing afterwards: the tensor that holds the result is what people wait
for. Were that not seen, a rank that hangs in such a wait would seem to wait for nothing.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from typing import Any

import torch

from disttrace import errors, foreign
from disttrace.capture.calls.call_table import Calls
from disttrace.capture.hot_path.call_key import freeze
from disttrace.capture.instrumentation.work import WaitPart
from disttrace.capture.native import cxx_callers
from disttrace.capture.native.cxx_callers import Appeared
from disttrace.capture.native.kernels import WITHIN, Kernels, after_key, including, redispatch_of
from disttrace.capture.native.operator_calls import OperatorCalls, before_cxx_issues, issuers
from disttrace.capture.objects.groups import GroupEntry
from disttrace.capture.wrapping.context import Capture
from disttrace.capture.wrapping.wrappers import Args, Function, Kwargs, wrap
from disttrace.journal.originals import get_ident
from disttrace.recording.choice import PLAIN
from disttrace.recording.operation import Call, Operation, ThreadState

PART = "waits of functional collectives"
NAMESPACES = (cxx_callers.FUNCTIONAL, "_dtensor")
_WAIT = "wait_tensor"

# torch's backend without traffic: what it issues is complete.
_NO_TRAFFIC = {"fake"}


class Issuing:
    """Calls of functional operators that communicate."""

    def __init__(self, capture: Capture, part: str, called: Appeared, scripted: Appeared) -> None:
        """``called`` puts the kernels of the key WITHIN in place, ``scripted`` those for all."""
        self._capture = capture
        self._part = part
        self._called = called
        core: Any = capture.recorder.core
        self._calls = Calls(capture.sites)
        self._find: Callable[..., Call | None] = (
            self._find_plainly if core.name == PLAIN else core.find
        )
        self._issued: dict[int, list[Call]] = {}  # by threads in a functional operator
        self._operators = OperatorCalls(capture, part, self._wrap, scripted)
        for namespace in NAMESPACES:
            self._operators.watch(namespace, issuers)
        capture.on_fork.append(self._issued.clear)

    def seen(self, call: Call) -> None:
        """The calling thread issued an operator of ``c10d`` and recorded it."""
        if self._issued:
            issued = self._issued.get(get_ident())
            if issued is not None:
                issued.append(call)

    def _wrap(self, original: Function) -> Function:
        part, fail, guard = self._part, self._capture.fail, self._capture.guard
        recorder, works = self._capture.recorder, self._capture.works
        core, threads = recorder.core, recorder.threads
        begin, issued, find, within = recorder.begin, recorder.issued, self._find, self._within
        known, group_of, expect = self._operators.known, self._group_named(), works.expect
        modes, frame_at = torch._C._len_torch_dispatch_stack, sys._getframe

        def __call__(operator: Any, /, *args: Any, **kwargs: Any) -> Any:
            try:
                thread = threads.state
                if thread.inside or core.off or modes() or not (args and _runs(args[0])):
                    return original(operator, *args, **kwargs)
                operation = key = None
                try:
                    name, at = known[id(operator)]
                    group = None if kwargs else group_of(args[at])
                    frame = frame_at().f_back
                    if frame is not None and group is not None and group.n > 0:
                        call = find(name, group.n, args, frame)
                        if call is None:
                            key = name, group.n, args, frame
                        else:
                            operation = begin(thread, call)
                except BaseException as error:
                    fail(part, error)
                if operation is None:
                    return within(key, original, operator, args, kwargs)
                try:
                    thread.inside = True
                    result = original(operator, *args)
                except BaseException as error:
                    thread.inside = False
                    guard(part, recorder.failed, operation, error, on_issue=True)
                    raise
                thread.inside = False
                try:
                    issued(operation)
                    if operation.call.device_ends:
                        works.device.add(operation, None, None)
                    else:
                        expect(operation, result)
                except BaseException as error:
                    fail(part, error)
                return result
            except BaseException as error:
                try:
                    errors.take_off(error)
                except errors.SCARCE:
                    pass
                raise

        return __call__

    def _within(
        self, key: Any, original: Function, operator: Any, args: Args, kwargs: Kwargs
    ) -> Any:
        """Have the operator issued where the kernels on ``c10d`` see it, and learn of them."""
        cxx_callers.guarded(self._capture, self._part, self._called)
        thread, issued = get_ident(), list[Call]()
        outer = self._issued.get(thread)
        self._issued[thread] = issued
        try:
            with including(WITHIN):
                return original(operator, *args, **kwargs)
        finally:
            if outer is None:
                self._issued.pop(thread, None)
            else:
                self._issued[thread] = outer
            if key is not None and len(issued) == 1:
                self._capture.guard(self._part, self._learn, key, issued[0])

    def _learn(self, key: Any, call: Call) -> None:
        """Know ``call`` from now on, if its operations are followed without a Work."""
        if call.device_ends:
            enough = self._capture.works.device.by_recorder(call)
        else:
            entry = self._capture.groups.by_number(call.group)
            enough = entry is not None and set(entry.backends.values()) == _NO_TRAFFIC
        if enough:
            self._find(*key, call)

    def _find_plainly(
        self, name: str, group: int, values: Args, frame: types.FrameType, call: Call | None = None
    ) -> Call | None:
        """The call of an operator with these arguments at this place; ``call`` from now on."""
        place = self._capture.sites.place(frame)
        key = name, group, tuple([freeze(value) for value in values]), place
        if call is not None:
            self._calls.add(key, call)
        return self._calls.get(key)

    def _group_named(self) -> Callable[[Any], GroupEntry | None]:
        """Gives the entry of the group that a call names; None where it is not known yet."""
        from torch._C._distributed_c10d import _resolve_process_group

        entry_of = self._capture.groups.get

        def named(name: Any) -> GroupEntry | None:
            try:
                return entry_of(id(_resolve_process_group(name) if type(name) is str else name))
            except Exception as error:  # nobody's name: torch will say so
                if not errors.is_ours(error):
                    raise
                return None

        return named


def _runs(value: Any) -> bool:
    """Whether an operator runs with ``value``, a tensor or several, as the first argument.

    Where a tensor subclass takes it (of a trace, a DTensor), whatever that runs is a call of its
    own, or nothing is run at all. So it is where a mode is active.
    """
    kind = type(value)
    if kind is torch.Tensor:
        return True
    if kind is list:
        return all(map(_runs, value))
    own = foreign.of_class(kind, _DISPATCH)
    return own is None or own is torch.Tensor.__dict__[_DISPATCH]


_DISPATCH = "__torch_dispatch__"


def install(capture: Capture) -> None:
    """See the waits of Python's, and once C++ may wait, have a kernel there."""

    def place(kernels: Kernels) -> None:
        redispatch, after = redispatch_of(cxx_callers.FUNCTIONAL, _WAIT), after_key()
        waiting = _waiting(capture, redispatch, lambda: kernels.off)
        kernels.put(_WAIT, lambda keyset, tensor: waiting(keyset & after, tensor))

    def wrap(original: Function) -> Function:
        return _waiting(capture, original, torch._C._len_torch_dispatch_stack)

    kernels = Kernels(capture, PART, cxx_callers.FUNCTIONAL, place)
    OperatorCalls(capture, PART, wrap, kernels.once).watch(
        cxx_callers.FUNCTIONAL, lambda namespace: ((_WAIT, 0),)
    )
    before_cxx_issues(capture, PART, kernels.once)


def _waiting(capture: Capture, original: Function, passes: Callable[[], int]) -> Function:
    """What ``original`` does, called with the operator or its keys and the tensor, recorded unless
    ``passes()``."""
    recorder, works = capture.recorder, capture.works

    def begin(thread: ThreadState, operator: Any, args: Args, *_: Any) -> Operation | None:
        if passes() or not (args and _runs(args[0])):
            return None
        operation = works.of_result(args[0])  # None where it is over or was never seen
        if operation is not None:
            recorder.wait_begins(operation)
        return operation

    def returned(thread: ThreadState, operation: Operation, *_: Any) -> None:
        works.over(operation)
        if not operation.call.device_ends:
            recorder.end(operation)

    return wrap(WaitPart(capture, PART), original, begin, returned)
