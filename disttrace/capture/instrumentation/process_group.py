"""Instrumentation of collectives and messages: methods of ProcessGroup and Backend; of coalesced
operations, which one Work ends; and of calls that torch rejects before any method is called: a root
outside the group, a wrong type, a message to oneself.

torch reports every exception of a public function to its logger. That report is where rejected
calls are seen, so calls that succeed pay nothing, and nothing of torch.compile's sees a patch.
"""

from __future__ import annotations

import functools
import inspect
import sys
import time
import types
from collections.abc import Callable
from typing import Any

import torch.distributed.distributed_c10d as c10d
from torch._C._distributed_c10d import AllreduceOptions, Backend, ProcessGroup

from disttrace import errors, foreign
from disttrace.capture.calls import arguments
from disttrace.capture.calls.operations import ROWS, Method
from disttrace.capture.wrapping import hot_path
from disttrace.capture.wrapping.call_definition import define
from disttrace.capture.wrapping.context import Capture
from disttrace.capture.wrapping.wrappers import Function, Part, after, before, wrap
from disttrace.journal.originals import get_ident
from disttrace.recording.interning import VARYING, added
from disttrace.recording.operation import Operation, ThreadState

PART = "collectives and messages"

# torch's public functions that wait themselves, by name: their options say nothing of it.
_WAITING = frozenset({"send", "recv", "monitored_barrier"})


def install(capture: Capture) -> None:
    """Patch every method that this torch has."""
    hot_path.read_options(capture, PART)
    parts = [(row, GroupPart(capture, row)) for row in ROWS]

    def instrument(owner: type) -> None:
        for row, part in parts:

            def make(original: Function, row: Method = row, part: GroupPart = part) -> Any:
                return part.wrapper(owner, capture.looking(row, original))

            if owner is not Backend and issubclass(owner, Backend):
                make = functools.partial(_called_back, capture, row, make)
            capture.engine.attribute(PART, owner, row.method, make)

    capture.instrument(ProcessGroup, Backend, by=instrument)


class GroupPart(Part):
    """One method: its wrapper, and what that leaves to ordinary functions."""

    origin = "python"
    tells = False
    """Whether ``returned`` gets whatever a call returns."""

    def __init__(self, capture: Capture, row: Method, name: str = PART) -> None:
        super().__init__(capture, name)
        self._row = row
        options_tell = hasattr(AllreduceOptions, "asyncOp")
        self._read_key = hot_path.key_of(row) if options_tell else hot_path.any_key
        self.asynchronous = None if options_tell else _async_local

    def wrapper(self, owner: type, original: Function) -> Any:
        row, numbers = self._row, self.capture.groups.numbers
        further: dict[str, Any] = {"asynchronous": self.asynchronous, "tells": self.tells}
        made = hot_path.native_wrapper(
            self, original, row.method, numbers=numbers, varying=self.varying, **further
        )
        if made is not None:
            return made
        further["read_key"] = self._read_key
        return hot_path.issuing(self, original, owner, row.method, **further)

    def begin(
        self, thread: ThreadState, frame: Any, owner: Any, /, *args: Any, **kwargs: Any
    ) -> Operation:
        capture, row = self.capture, self._row
        read = arguments.read(row, args, kwargs)
        group, asynchronous = self.issues(owner, read, frame)
        entry = capture.groups.of(group)
        stack = capture.sites.stack(frame)
        call, extra = define(capture, row, group, entry, read, asynchronous, self.origin, stack)
        return capture.recorder.begin(thread, call, extra)

    def issues(
        self, owner: Any, read: arguments.CallArguments, frame: Any
    ) -> tuple[Any, bool | None]:
        """On which group, and whether the waiting is left to the caller."""
        return owner, _asynchronous(self.capture, read, frame)

    def varying(self, *args: Any, **kwargs: Any) -> bytes:
        """What the begin record of a call adds that is known but for its lengths."""
        read = arguments.read(self._row, args, kwargs)
        return added({k: v for k in VARYING if (v := getattr(read, k, None)) is not None})

    def returned(self, thread: ThreadState, operation: Operation, work: Any) -> None:
        recorder, works = self.capture.recorder, self.capture.works
        if thread.batches is not None and operation.call.group in thread.batches:
            recorder.issued(operation)
            thread.batches[operation.call.group].append(operation)
        elif work is not None:
            recorder.issued(operation)
            works.add(work, operation)
        elif operation.call.device_ends:
            # NCCL waits for a synchronous call inside C++, and that only orders streams.
            recorder.issued(operation)
            works.device.add(operation, None, None)
        else:
            recorder.end(operation)


class _CalledBack(Part):
    def failed(self, thread: ThreadState, operation: Operation, error: BaseException) -> None:
        self.capture.issuing.pop(get_ident(), None)  # such an operation has no post-hook
        super().failed(thread, operation, error)


def _called_back(capture: Capture, row: Method, make: Function, original: Function) -> Function:
    """The wrapper of a Python backend's method, but for what a hook has put on record."""
    recorded, issuing = make(original), capture.issuing

    def begun(thread: ThreadState, backend: Any, *_: Any) -> Operation | None:
        """What a hook has begun on this thread, if it is this method's: a stale one is not."""
        operation = issuing.get(get_ident(), (None, ()))[0]
        if operation is None or operation.call.op != row.op:
            return None
        entry = capture.groups.get(id(backend))
        return operation if entry is not None and entry.n == operation.call.group else None

    return wrap(_CalledBack(capture, PART), recorded, begun, lambda *_: None)


def _asynchronous(capture: Capture, signature: arguments.CallArguments, frame: Any) -> bool | None:
    """Whether the public call left the waiting to its caller; None where that cannot be known."""
    name = frame.f_code.co_name if frame is not None else ""
    if not (name and capture.sites.is_torch(frame.f_code.co_filename)):
        return bool(name != "monitored_barrier")  # the method itself was called
    if name in _WAITING:
        return False
    if name in ("isend", "irecv"):
        return not _sends_and_waits(capture, frame)
    if signature.asynchronous is not None:
        return signature.asynchronous
    return _async_local(frame)


def _sends_and_waits(capture: Capture, frame: Any) -> bool:
    """Whether torch's own ``send`` or ``recv`` called this ``isend``, and waits for it itself."""
    caller = frame.f_back
    if caller is not None and caller.f_code.co_name == "wrapper":  # torch's decorator
        caller = caller.f_back
    if caller is None or caller.f_code.co_name not in _WAITING:
        return False
    return capture.sites.is_torch(caller.f_code.co_filename)


def _async_local(frame: Any) -> bool | None:
    """The ``async_op`` argument of the calling torch function, where options do not carry it."""
    value = frame.f_locals.get("async_op") if frame is not None else None
    return value if isinstance(value, bool) else None


COALESCED = "coalesced operations"


def install_coalescing(capture: Capture) -> None:
    """Patch the two ends of coalescing."""
    batches = Coalescing(capture)
    for owner in (ProcessGroup, Backend):
        start = after(capture, COALESCED, batches.start)
        capture.engine.attribute(COALESCED, owner, "_start_coalescing", start)
        capture.engine.attribute(COALESCED, owner, "_end_coalescing", batches.end)


class Coalescing:
    """Operations issued between the two ends, by thread and group."""

    def __init__(self, capture: Capture) -> None:
        self._capture = capture
        self._around: dict[tuple[int, int], Operation] = {}
        capture.on_fork.append(self._around.clear)

    def start(self, result: Any, group: Any, *args: Any, **kwargs: Any) -> None:
        """From here on this thread's operations on ``group`` end together."""
        thread = self._capture.recorder.threads.state
        if thread.inside:
            return
        entry = self._capture.groups.of(group)
        if thread.batches is None:
            thread.batches = {}
        thread.batches[entry.n] = []
        frame = foreign.caller(sys._getframe(1))
        operation = self._capture.begin_composed(frame, "coalescing_manager", group=entry)
        self._around[thread.number, entry.n] = operation

    def end(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """The wrapper of the call that issues them together."""
        guard, ended = self._capture.guard, self._ended

        def _end_coalescing(self: Any, *args: Any, **kwargs: Any) -> Any:
            begin = time.perf_counter_ns()
            work = original(self, *args, **kwargs)
            guard(COALESCED, ended, self, work, (begin, time.perf_counter_ns()))
            return work

        return _end_coalescing

    def _ended(self, group: Any, work: Any, call: tuple[int, int]) -> None:
        """``work`` ends them; without one they are over, or the device tells. ``call``: when."""
        thread = self._capture.recorder.threads.state
        if thread.inside:
            return
        entry = self._capture.groups.of(group)
        self._capture.leave(COALESCED, self._around.pop((thread.number, entry.n), None))
        batch = (thread.batches or {}).pop(entry.n, [])
        thread.batches = thread.batches or None
        recorder, works = self._capture.recorder, self._capture.works
        if batch and batch[0].call.device_ends:
            for operation in batch:
                works.device.add(operation, call, work)
        elif batch and work is not None:
            works.add(work, batch[0], batch[1:])
        else:
            for operation in batch:
                recorder.end(operation)


REFUSED = "calls refused by torch"
_REPORT = "_get_msg_dict"

# Public functions whose operations have a record of their own once a method is called, by the row
# that says its name: aliases are told by the name that is recorded.
_UNNAMED = ("_coalesced", "monitored_barrier")
_FUNCTIONS = {row.op: row for row in ROWS if not row.op.endswith(_UNNAMED)}
_FUNCTIONS |= {row.method: row for row in ROWS if row.method.endswith("_single")}
_RANKS = ("src", "dst", "group_src", "group_dst")


def install_refused(capture: Capture) -> None:
    """Patch what torch's decorator calls with an exception in hand."""
    from torch.distributed import c10d_logger

    original = getattr(c10d_logger, _REPORT, None)
    if original is None:
        return

    def report(name: str, *args: Any, **kwargs: Any) -> None:
        """``_get_msg_dict(function's name, *arguments)`` was called."""
        error = sys.exc_info()[1]
        if name not in _FUNCTIONS or error is None:
            return
        seen = capture.newest_raised == (id(error), errors.first_line(error))
        if not seen and not _known(error, c10d_logger.__file__):
            frame = foreign.caller(sys._getframe(1))
            _record(capture, _FUNCTIONS[name], _given(name, args, kwargs), error, frame)

    capture.engine.value(REFUSED, c10d_logger, _REPORT, before(capture, REFUSED, report)(original))


def _known(error: BaseException, logger_file: str) -> bool:
    """Whether the exception came through a wrapper in Python, or another decorated function."""
    codes = [entry.tb_frame.f_code for entry in foreign.entries_of(error)][1:]
    return any(one.co_filename == logger_file or foreign.is_our_code(one) for one in codes)


def _record(
    capture: Capture,
    row: Method,
    given: dict[str, Any],
    error: BaseException,
    frame: types.FrameType | None,
) -> None:
    inside = capture.recorder.threads.state.inside
    entry = None if inside else capture.groups.passed(given.get("group"))
    if entry is None:
        return
    ranks = {key: n for key in _RANKS if (n := foreign.integer(given.get(key))) is not None}
    keys = {"kind": row.kind, "group": entry.n, "backend": entry.backend(None)}
    key = (entry.n, *ranks.items())
    # It took no number.
    operation = capture.begin(frame, row.op, key, {**keys, "args": ranks or None})
    capture.recorder.failed(operation, error, on_issue=True)


def _given(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments by name; only the keywords where they do not fit the function."""
    try:
        function = getattr(c10d, name)
        return dict(inspect.signature(function).bind_partial(*args, **kwargs).arguments)
    except foreign.ours(AttributeError, TypeError):
        return kwargs
