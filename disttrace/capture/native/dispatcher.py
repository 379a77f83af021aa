"""Instrumentation of operations issued by C++ on a torch without native hooks: dispatcher kernels.

Every collective passes the operators ``c10d::*``. Kernels see them also in inference mode, on
autograd's threads and from compiled graphs. They cost microseconds for every operation, Python's
too, so they wait for something that issues from C++. Functional collectives are not worth that:
for them the same kernels stand where only their threads come by (``functional.py``).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch._C._distributed_c10d as c10d

from disttrace.capture.calls import arguments
from disttrace.capture.calls.arguments import Signature
from disttrace.capture.calls.operations import NATIVE, Native
from disttrace.capture.hot_path.call_key import freeze
from disttrace.capture.native import cxx_callers, functional, hooks
from disttrace.capture.native.kernels import (
    WITHIN,
    Kernels,
    after_key,
    operators,
    redispatch_of,
    schema_of,
)
from disttrace.capture.native.operations import NativeOperations
from disttrace.capture.native.operator_calls import before_cxx_issues
from disttrace.capture.objects.groups import GroupEntry
from disttrace.capture.objects.works import storage
from disttrace.capture.wrapping.call_definition import Define
from disttrace.capture.wrapping.context import Capture
from disttrace.capture.wrapping.wrappers import Args, Part, wrap
from disttrace.recording.operation import Call, Operation, ThreadState

PART = hooks.PART
_NAMESPACE = "c10d"

# Names of the schemas' parameters, by what they mean.
_SENT = frozenset({"tensors", "input", "inputs", "input_tensor", "input_tensors", "input_list"})
_RECEIVED = frozenset({"output", "outputs", "output_tensor", "output_tensors", "output_lists"})
_ASYNCHRONOUS = frozenset({"async_op", "asyncOp"})
_UNKEYED = frozenset({"process_group", "reduce_op", "timeout", "sparse_indices"})
_DUMMY = frozenset({"barrier", "monitored_barrier"})  # their tensor only carries the device


def install(capture: Capture) -> None:
    """Watch for C++ callers."""
    everywhere = Kernels(capture, PART, _NAMESPACE)
    within = Kernels(capture, PART, _NAMESPACE, WITHIN)
    operations = NativeOperations(capture)

    def place(kernels: Kernels) -> None:
        defined = frozenset(operators(_NAMESPACE))
        for row in NATIVE:
            if row.dispatcher in defined:
                reader = _Reader(capture, operations, row, schema_of(_NAMESPACE, row.dispatcher))
                kernel = _kernel(
                    capture, kernels, reader, row.dispatcher, lambda call: issuing.seen(call)
                )
                kernels.put(row.dispatcher, kernel)

    def appeared() -> None:
        everywhere.once(functools.partial(place, everywhere))

    def called() -> None:
        within.once(functools.partial(place, within))

    issuing = functional.Issuing(capture, PART, called, appeared)
    before_cxx_issues(capture, PART, appeared)
    cxx_callers.watch_operators(capture, PART, appeared, _NAMESPACE)


def _kernel(
    capture: Capture,
    kernels: Kernels,
    reader: _Reader,
    name: str,
    seen: Callable[[Call], None],
) -> Callable[..., Any]:
    redispatch, after = redispatch_of(_NAMESPACE, name), after_key(kernels.key)
    unbox_work, issued = c10d.Work.unbox, reader.operations.done

    def pass_on(keyset: Any, *args: Any) -> Any:
        return redispatch(keyset & after, *args)

    def begin(
        thread: ThreadState, keyset: Any, args: Args, kwargs: Any, frame: Any
    ) -> Operation | None:
        if kernels.off:
            return None
        operation = reader.begin(thread, args, frame)
        seen(operation.call)
        return operation

    def returned(
        thread: ThreadState, operation: Operation, keyset: Any, args: Any, result: Any
    ) -> None:
        last = result[-1] if type(result) is tuple and result else result
        work = None if last is None or type(last) is tuple else unbox_work(last)
        issued(operation, work, reader.filled(args))

    return wrap(Part(capture, PART), pass_on, begin, returned)


class _Reader:
    """Reads the arguments of one operator by the names in its schema, which differ by version."""

    def __init__(
        self, capture: Capture, operations: NativeOperations, row: Native, schema: Any
    ) -> None:
        self.operations = operations
        self._row = row
        self._capture = capture
        self._unbox = c10d.ProcessGroup.unbox
        self._read_op = reduce_op_reader()
        self._names = [argument.name for argument in schema.arguments]
        self._defaults = {
            argument.name: argument.default_value
            for argument in schema.arguments
            if argument.has_default_value()
        }
        self._group = self._names.index("process_group")
        self._op = self._names.index("reduce_op") if "reduce_op" in self._names else None
        self._keyed = [n for n, name in enumerate(self._names) if name not in _UNKEYED]
        outputs = [n for n, name in enumerate(self._names) if name in _RECEIVED]
        inputs = [n for n, name in enumerate(self._names) if name in _SENT]
        self._filled = outputs or inputs

    def begin(self, thread: ThreadState, args: tuple[Any, ...], frame: Any) -> Operation:
        """Put the operation on record; ``frame`` is the kernel's."""
        group = self._unbox(args[self._group])
        entry = self._capture.groups.get(id(group)) or self._capture.groups.of(group)
        count = len(args)  # without the trailing arguments that have their default value
        parts = tuple(freeze(args[n]) for n in self._keyed if n < count)
        op = self._read_op(args[self._op]) if self._op is not None else None
        key = (self._row.dispatcher, entry, op, parts)
        return self.operations.begin(
            thread, frame, key, lambda: self._described(group, entry, args)
        )

    def filled(self, args: tuple[Any, ...]) -> list[int]:
        """Storages that hold the result."""
        return [storage(tensor) for n in self._filled for tensor in arguments.flat(args[n])]

    def _described(self, group: Any, entry: GroupEntry, args: tuple[Any, ...]) -> Define:
        named = self._defaults | dict(zip(self._names, args))
        return self.operations.described(self._row, group, entry, self._signature(named))

    def _signature(self, named: dict[str, Any]) -> Signature:
        dummy = self._row.op in _DUMMY
        sent = [t for name in named if name in _SENT for t in arguments.flat(named[name])]
        received = [t for name in named if name in _RECEIVED for t in arguments.flat(named[name])]
        rest: dict[str, Any] = {}
        if sent and received:
            rest["output_shapes"] = [list(tensor.shape) for tensor in received]
        if named.get("timeout", -1) > 0:
            rest["timeout"] = named["timeout"] / 1000  # the schema counts milliseconds
        return arguments.signature(
            sent,
            received,
            device=named["tensor"].device.type if dummy else None,
            asynchronous=next((named[n] for n in _ASYNCHRONOUS if n in named), None),
            splits=_splits(named),
            reduce_op=self._read_op(named["reduce_op"]) if "reduce_op" in named else None,
            root=named.get("root_rank"),
            peer=named.get("dst", named.get("src")),
            tag=named.get("tag"),
            args=rest or None,
        )


def _splits(named: dict[str, Any]) -> list[list[int]] | None:
    if "input_split_sizes" not in named:
        return None
    return [list(named["input_split_sizes"]), list(named["output_split_sizes"])]


def reduce_op_reader() -> Callable[[Any], str | None]:
    """Names a boxed ReduceOp; None on a torch that shows it to nobody."""
    if hasattr(c10d.ReduceOp, "unbox"):
        return lambda boxed: arguments.reduce_op_name(c10d.ReduceOp.unbox(boxed))
    # To make the member and ask it for its name would cost as much again as asking the box.
    names = {int(member): name for name, member in c10d.ReduceOp.RedOpType.__members__.items()}

    def read(boxed: Any) -> str | None:
        try:
            return names.get(boxed.op())
        except (AttributeError, RuntimeError, TypeError, ValueError):
            return None

    return read
