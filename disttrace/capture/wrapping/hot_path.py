"""The wrapper of a method that is called all the time, in either core, and the key under which it
knows a call: what tells one from another, read on every call.

The plain core has a function for each layout of arguments that the public API passes; everything
else (another overload, several tensors, lists of lists) is frozen as a whole, which is slower. The
native core (``_fast.c``) reads any arguments by itself, and learns here only which types are what.
Two calls with one key have the same fields, as ``arguments.read`` reads them. What is rare (a call
not seen before, an exception, work of a device) is left to the part's own methods.
"""

from __future__ import annotations

import datetime
import functools
import inspect
import sys
import types
from collections.abc import Callable, Hashable, Mapping
from typing import Any

import torch
import torch._C._distributed_c10d as c10d

from disttrace import errors, foreign, redact
from disttrace.capture.calls.call_site import CallTable
from disttrace.capture.calls.operations import DATA, NOTHING, OUT_IN, PEER, ROOTED, Method
from disttrace.capture.wrapping.context import Capture
from disttrace.capture.wrapping.wrappers import NO_OBJECT, Args, Begin, Function, Kwargs, Part, wrap
from disttrace.foreign import ours
from disttrace.patching import rename
from disttrace.recording.core import PLAIN
from disttrace.recording.operation import WAITED, Operation, ThreadState, size

# What ``arguments.read`` reads of torch's options objects (``asyncOp`` from torch 2.6 on).
_OPTION_FIELDS = ("reduceOp", "rootRank", "asyncOp", "device")

ReadKey = Callable[[tuple[Any, ...], Mapping[str, Any]], Hashable]


# Whether a mode or a class of the program's would be asked for what is read of a tensor
# (``__torch_function__``): it must not learn of what the program never asked.
overridden: Callable[[Any], bool] = torch._C._has_torch_function_unary


_of_tensors: Mapping[str, Any] = {
    name: inspect.getattr_static(torch.Tensor, name)
    for name in ("shape", "dtype", "is_cpu", "device")
}
_shape, _dtype, _is_cpu, _device = (one.__get__ for one in _of_tensors.values())


def tensor_key(tensor: Any) -> Hashable:
    """What tells a tensor from another, read past modes and classes of the program's."""
    with torch._C.DisableTorchFunction():
        return _shape(tensor), _dtype(tensor), _device(tensor)


# A device is asked only where it is not the usual one: the object is made anew on each reading.
# Comparing two ReduceOps costs more than everything else here; their hashes differ.
def _seen(tensor: Any) -> Hashable:
    """The same, where no mode or class would be asked; else it raises TypeError."""
    if overridden(tensor):
        raise TypeError
    return _shape(tensor), _dtype(tensor), _is_cpu(tensor) or _device(tensor)


def _reduced(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Hashable:
    if kwargs:
        raise TypeError
    (tensor,), options = args
    return _seen(tensor), options.asyncOp, hash(options.reduceOp)


def _rooted(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Hashable:
    if kwargs:
        raise TypeError
    (tensor,), options = args
    return _seen(tensor), options.asyncOp, options.rootRank


def _out_in(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Hashable:
    if kwargs:
        raise TypeError
    output, tensor, options = args
    if overridden(output):
        raise TypeError
    return _shape(output), _seen(tensor), options.asyncOp


def _peer(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Hashable:
    if kwargs:
        raise TypeError
    (tensor,), peer, tag = args
    return _seen(tensor), peer, tag


def _nothing(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Hashable:
    (options,) = kwargs.values() if kwargs else args  # barrier passes it by name
    return options.device, options.asyncOp


# By layout, and whether the operation reduces.
_USUAL: Mapping[tuple[tuple[str, ...], bool], ReadKey] = {
    (DATA, True): _reduced,
    (ROOTED, False): _rooted,
    (ROOTED, True): lambda args, kwargs: (_rooted(args, kwargs), hash(args[1].reduceOp)),
    (OUT_IN, False): _out_in,
    (OUT_IN, True): lambda args, kwargs: (_out_in(args, kwargs), hash(args[2].reduceOp)),
    (PEER, False): _peer,
    (NOTHING, False): _nothing,
}


def key_of(row: Method) -> ReadKey:
    """What makes the key of usual calls of ``row``; it raises for calls of another form."""
    return any_key if row.lists else _USUAL.get((row.layout, "reduce" in row.op), any_key)


def any_key(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Hashable:
    """What tells any call from another of the same method."""
    return (
        tuple([freeze(value) for value in args]),  # a generator costs several times as much
        tuple([(name, freeze(value)) for name, value in kwargs.items()]),
    )


def freeze(value: Any) -> Any:
    """What tells ``value`` from another argument of the same call."""
    kind = type(value)
    if id(kind) in _THEMSELVES or value is None:  # a metaclass may hash as it likes
        return value
    if issubclass(kind, torch.Tensor):
        return tensor_key(value) if overridden(value) else _seen(value)
    if issubclass(kind, (list, tuple)):
        return tuple([freeze(item) for item in foreign.items_of(value)])
    if issubclass(kind, datetime.timedelta):
        return "timeout"
    if issubclass(kind, (int, str, float)):
        return foreign.plain(value)
    name = foreign.type_name(value)
    if name.endswith("Options") and foreign.is_of_library(value, _TORCH):
        fields = (getattr(value, field, None) for field in _OPTION_FIELDS)
        return tuple(tuple(f) if isinstance(f, list) else f for f in fields)
    return name


def kinds() -> dict[type, tuple[str, ...] | bool | type | None]:
    """What the native core must know of types: the attributes of options objects that tell calls
    apart; of types whose hashes do, whether an object of theirs stays as it is, else None, or of
    which type an options object takes one in its place."""
    fields = {
        kind: tuple(name for name in _OPTION_FIELDS if hasattr(kind, name))
        for name, kind in vars(c10d).items()
        if name.endswith("Options") and isinstance(kind, type)
    }
    fixed = (bool, int, torch.device, torch.dtype, datetime.timedelta)
    operations = {c10d.ReduceOp.RedOpType: c10d.ReduceOp, c10d.ReduceOp: None}
    return {**fields, **dict.fromkeys(fixed, True), **operations}


_TORCH = frozenset({"torch"})
_THEMSELVES = frozenset(
    id(kind)
    for kind in (
        *(bool, int, str, float),
        *(torch.device, torch.dtype, c10d.ReduceOp, c10d.ReduceOp.RedOpType),
    )
)
"""Types whose objects stay as they are in a key, and are compared by no code of the program's."""


def of_tensors() -> tuple[Any, ...]:
    """What the native core reads a tensor by, in its order, whatever a subclass has: descriptors,
    the method that gives its storage, and the descriptor of that one's address."""
    address = inspect.getattr_static(torch.UntypedStorage, "_cdata")
    return (*_of_tensors.values(), inspect.getattr_static(torch.Tensor, "untyped_storage"), address)


def issuing(
    part: Part,
    original: Function,
    owner: type,
    name: str,
    *,
    read_key: ReadKey,
    asynchronous: Callable[[Any], bool | None] | None,
    tells: bool = False,
) -> Function:
    """The wrapper of what issues a collective or message; ``tells``: the part gets all results."""
    recorder, works = part.capture.recorder, part.capture.works
    core: Any = recorder.core

    def returned(thread: ThreadState, operation: Operation, _: Any, __: Any, result: Any) -> None:
        call = operation.call
        if result is not None and call.synchronous:
            if call.device_ends:
                core.issued(operation)  # its wait orders streams, and the device goes on
            else:
                # The native core reads the time itself, and wraps the program's own functions here.
                operation.issued = (core.clock or recorder.clock)() - operation.begin
            operation.work = id(result)
            thread.waited.append(operation)
            if len(thread.waited) > WAITED:  # a wait that never came: an exception came between
                del thread.waited[0]
        elif tells or result is None or call.device_ends or thread.batches is not None:
            part.returned(thread, operation, result)
        else:
            core.issued(operation)
            works.add(result, operation)

    begin = _beginning(part, part.capture.groups.numbers.get, read_key, asynchronous, None)
    return wrap(part, original, begin, returned, owner=owner, name=name)


def storing(
    part: Part,
    original: Function,
    owner: type,
    name: str,
    *,
    told: Callable[[Args, Kwargs], bytes],
    returns: bool,
) -> Function:
    """The wrapper of a method of stores; ``told``: what its begin has of its arguments."""
    end = part.capture.recorder.core.end

    def returned(thread: ThreadState, operation: Operation, _: Any, __: Any, result: Any) -> None:
        end(operation, b',"n":%d' % size(result) if returns else b"")

    begin = _beginning(part, part.capture.stores.numbers.get, None, None, told)
    return wrap(part, original, begin, returned, owner=owner, name=name)


def _beginning(
    part: Part,
    number_of: Callable[[int], int | None],
    read_key: ReadKey | None,
    asynchronous: Callable[[Any], bool | None] | None,
    told: Callable[[Args, Kwargs], bytes] | None,
) -> Begin:
    """Looks the call up by its object's number and place, and what else tells calls apart."""
    capture, calls = part.capture, CallTable(part.capture.sites)
    place, known, core_begin = capture.sites.place, calls.get, capture.recorder.core.begin

    def begin(thread: ThreadState, owner: Any, args: Args, kwargs: Kwargs, frame: Any) -> Operation:
        key, call = None, None
        try:
            number = number_of(id(owner))
            if number is not None:
                read = read_key and read_key(args, kwargs)
                key = number, place(frame), read, asynchronous and asynchronous(frame)
                call = known(key)
        except ours(Exception):  # another form, or a property of the user's raised
            pass
        if call is not None:
            return core_begin(thread, call, told(args, kwargs) if told else b"")
        operation = part.begin(thread, frame, owner, *args, **kwargs)
        if key is not None:
            try:
                calls.add(key, operation.call)
            except BaseException:  # nobody gets it who could end it
                part.capture.recorder.lost(operation)
                raise
        return operation

    return begin


def waiting(part: Part, original: Function, owner: type, name: str) -> Function:
    """The wrapper of a Work's ``wait``: of a call that waits itself, or later, or of one that
    nobody knows."""
    core, works = part.capture.recorder.core, part.capture.works
    threads, end, end_synchronous = core.threads, core.end, core.end_synchronous

    def begin(thread: ThreadState, work: Any, *_: Any) -> Operation | None:
        awaited, waited = id(work), thread.waited
        for operation in reversed(waited):
            if operation.work == awaited:
                waited.remove(operation)
                return operation
        followed = core.followed(work)
        if followed is not None:
            core.wait_begins(followed)
        return followed

    def returned(thread: ThreadState, operation: Operation, work: Any, *_: Any) -> None:
        call = operation.call
        if call.counter is None or call.device_ends or operation.more or operation.held:
            part.returned(thread, operation, work)
        elif call.synchronous:
            end_synchronous(operation)
        else:
            works.over(operation)
            end(operation)

    # A wait lasts, and so is what signals interrupt. One in C++ issues nothing itself.
    alone = None if isinstance(original, types.FunctionType) else owner
    any_wait = wrap(part, original, begin, returned, owner=owner, name=name, alone=alone, above=1)
    rename(any_wait, name, owner)

    def wait(self: Any = NO_OBJECT, /, *args: Any, **kwargs: Any) -> Any:
        try:  # around all of it: an exception of the other wait passes this frame, too
            thread = threads.state
            operation = thread.waited[-1] if thread.waited else None
            if operation is None or operation.work != id(self) or type(self) is not alone or args:
                return any_wait(self, *args, **kwargs)
            if kwargs or thread.inside or core.off:
                return any_wait(self, *args, **kwargs)
            thread.waited.remove(operation)  # the public call that issued it waits for it
            try:
                result = original(self)
            except BaseException as error:
                try:
                    part.failing(thread, operation, error)
                except errors.SCARCE:
                    pass
                raise
            try:
                if operation.call.counter is None or operation.call.device_ends:
                    part.returned(thread, operation, self)
                else:
                    end_synchronous(operation)
            except BaseException as error:
                try:
                    part.fail(error)
                except errors.SCARCE as further:
                    if further is error:  # a handler's
                        raise
            return result
        except BaseException as error:
            try:
                errors.take_off(error)
            except errors.SCARCE:
                pass
            raise

    return wait


def read_options(capture: Capture, part: str) -> None:
    """Have the native core read arguments; of torch's options it knows what Python sets."""
    core: Any = capture.recorder.core
    if core.name == PLAIN:
        return
    core.tensor, core.of_tensors, core.kinds = torch.Tensor, of_tensors(), kinds()
    core.overridden, core.tensor_key = overridden, tensor_key
    core.modes = torch._C._len_torch_dispatch_stack
    for kind, names in list(core.kinds.items()):
        if not isinstance(names, tuple):
            continue
        for name in names:
            if isinstance(kind.__dict__.get(name), property):
                make = functools.partial(core.option, core, name)
                capture.engine.attribute(part, kind, name, make)
        core.kinds[kind] = tuple(kind.__dict__.get(name, name) for name in names)


def native_wrapper(
    part: Part, original: Function, name: str, *, torchs: bool = False, **further: Any
) -> Any:
    """What stands in the place of ``original``; None where the plain core has to make it: for the
    program's own Python functions too, which stay functions (to `inspect`, `pickle`, pybind11),
    but not for one of ``torchs``.

    It is a builtin where a builtin stood, and something else for functions of ours: pybind11
    tells by it what is a Python subclass's override. ``further`` says what it begins and reads:
    nothing of a wait, else the ``numbers`` of groups or stores by id(); of a method that issues
    what is ``asynchronous``: says of the calling frame whether its call waits, where options do
    not, and whether it ``tells`` its part of all that it returns; and of one of stores how to
    ``describe`` a call, the texts of known ``keys`` where the first argument is one, the position
    of the ``value`` that is stored (0: none), and whether it ``returns_value``; and of operators
    the ``direct`` call of what is known, whether one of a first argument ``passes`` kernels, and
    whether it ``waits``.
    """
    core: Any = part.capture.recorder.core
    if core.name == PLAIN:
        return None
    if core.plain is None:
        core.plain, core.is_ours = redact.current.plain, foreign.is_ours
        core.take_off = errors.take_off
    inner = getattr(original, "__func__", original)  # pybind11's stand in instance methods
    builtin = isinstance(inner, types.BuiltinFunctionType)
    if not (builtin or torchs or (original.__module__ or "").startswith("disttrace.")):
        return None
    called = inner if builtin else original
    method = core.method(core, name, called)
    method.part = part
    if further:
        method.begin = _begin(part)
    for key, value in further.items():
        setattr(method, key, value)
    return method.builtin(inner.__module__) if builtin else method


def _begin(part: Part) -> Function:
    """Begins a call that was not seen before, called with its arguments by the native core."""
    threads = part.capture.recorder.core.threads

    def begin(owner: Any, /, *args: Any, **kwargs: Any) -> Operation:
        frame = sys._getframe().f_back  # C has none; None where C++ calls without any
        return part.begin(threads.state, frame, owner, *args, **kwargs)

    return begin
