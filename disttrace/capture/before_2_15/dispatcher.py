"""Instrumentation of operations issued by C++ on a torch without native hooks: dispatcher kernels.

Every collective passes the operators ``c10d::*``. Kernels see them also in inference mode, on
autograd's threads and from compiled graphs. They cost microseconds for every operation, Python's
too, so they wait for something that issues from C++. Functional collectives are not worth that:
for them the same kernels stand where only their threads come by (``functional.py``).
"""

from __future__ import annotations

import datetime
import functools
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch._C._distributed_c10d as c10d

from disttrace.capture.calls import arguments
from disttrace.capture.calls.arguments import CallArguments
from disttrace.capture.calls.operations import ROWS, Method
from disttrace.capture.native import functional, hooks
from disttrace.capture.native.kernels import (
    WITHIN,
    Kernels,
    before_cxx_issues,
    guarded,
    including,
    operators,
    schema_of,
    watch_operators,
)
from disttrace.capture.objects.works import storage
from disttrace.capture.wrapping import call_definition
from disttrace.capture.wrapping.context import Capture
from disttrace.capture.wrapping.hot_path import freeze
from disttrace.capture.wrapping.wrappers import Args, Part, wrap
from disttrace.foreign import ours
from disttrace.recording.operation import CallRecord, Operation, ThreadState

PART = hooks.PART
_NAMESPACE = "c10d"

_UNKEYED = frozenset({"process_group", "op", "timeout", "sparse_indices"})


def install(capture: Capture) -> None:
    """Watch for C++ callers."""

    def place(kernels: Kernels) -> None:
        defined = frozenset(operators(_NAMESPACE))
        for row in ROWS:
            if row.operator in defined:
                reader = _SchemaReader(capture, row)
                kernel = _kernel(capture, kernels, reader, lambda call: issuing.seen(call))
                kernels.put(row.operator, kernel)

    everywhere = Kernels(capture, PART, _NAMESPACE, place)
    within = Kernels(capture, PART, _NAMESPACE, place, WITHIN)

    def included() -> AbstractContextManager[None]:
        guarded(capture, PART, within.once)
        return including(WITHIN)

    issuing = functional.Issuing(capture, PART, included, everywhere.once)
    before_cxx_issues(capture, PART, everywhere.once)
    capture.show_cxx = everywhere.once
    watch_operators(capture, PART, everywhere.once, _NAMESPACE)


def _kernel(
    capture: Capture, kernels: Kernels, reader: _SchemaReader, seen: Callable[[CallRecord], None]
) -> Callable[..., Any]:
    pass_on, unbox_work = kernels.passing_on(reader.row.operator), c10d.Work.unbox

    def begin(thread: ThreadState, _: Any, args: Args, __: Any, frame: Any) -> Operation | None:
        if kernels.off:
            return None
        operation = reader.begin(thread, args, frame)
        seen(operation.call)
        return operation

    def returned(thread: ThreadState, operation: Operation, _: Any, args: Any, result: Any) -> None:
        last = result[-1] if type(result) is tuple and result else result
        work = None if last is None or type(last) is tuple else unbox_work(last)
        call_definition.issued(capture, operation, work, reader.filled(args))

    return wrap(Part(capture, PART), pass_on, begin, returned)


class _SchemaReader:
    """Reads an operator's arguments by its schema's names, which differ by version."""

    def __init__(self, capture: Capture, row: Method) -> None:
        self.row = row
        self._capture = capture
        self._unbox = c10d.ProcessGroup.unbox
        self._read_op = reduce_op_reader()
        given = schema_of(_NAMESPACE, row.operator).arguments
        names = [argument.name for argument in given]
        slots = ["dummy" if name == "tensor" else arguments.slot_of(name) for name in names]
        self._slots = slots
        self._defaults = {
            slot: argument.default_value
            for slot, argument in zip(slots, given)
            if argument.has_default_value()
        }
        self._group = slots.index("process_group")
        self._op = slots.index("op") if "op" in slots else None
        self._keyed = [n for n, slot in enumerate(slots) if slot not in _UNKEYED]
        self._filled = [n for n, slot in enumerate(slots) if slot in ("data", "outputs")]

    def begin(self, thread: ThreadState, args: tuple[Any, ...], frame: Any) -> Operation:
        """Put the operation on record; ``frame`` is the kernel's."""
        group = self._unbox(args[self._group])
        entry = self._capture.groups.get(id(group)) or self._capture.groups.of(group)
        count = len(args)  # without the trailing arguments that have their default value
        parts = tuple(freeze(args[n]) for n in self._keyed if n < count)
        op = self._read_op(args[self._op]) if self._op is not None else None
        key = (self.row.operator, entry, op, parts)
        read = functools.partial(self._read, group, args)
        return call_definition.begin_issued(
            self._capture, thread, frame, key, self.row, entry, read
        )

    def filled(self, args: tuple[Any, ...]) -> list[int]:
        return [storage(tensor) for n in self._filled for tensor in arguments.flat(args[n])]

    def _read(self, group: Any, args: tuple[Any, ...]) -> tuple[Any, CallArguments]:
        named = self._defaults | dict(zip(self._slots, args))
        if named.get("timeout", -1) > 0:
            named["timeout"] = datetime.timedelta(milliseconds=named["timeout"])
        device = named["dummy"].device.type if "dummy" in named else None
        reduce_op = self._read_op(named["op"]) if "op" in named else None
        return group, arguments.of_slots(named, device=device, reduce_op=reduce_op)


def reduce_op_reader() -> Callable[[Any], str | None]:
    """Names a boxed ReduceOp; None on a torch that does not show it."""
    if hasattr(c10d.ReduceOp, "unbox"):
        return lambda boxed: arguments.reduce_op_name(c10d.ReduceOp.unbox(boxed))
    # To make the member and ask it for its name would cost as much again as asking the box.
    names = {int(member): name for name, member in c10d.ReduceOp.RedOpType.__members__.items()}

    def read(boxed: Any) -> str | None:
        try:
            return names.get(boxed.op())
        except ours(AttributeError, RuntimeError, TypeError, ValueError):
            return None

    return read
