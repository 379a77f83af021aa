"""Instrumentation of operations made of several: they become parents of what they issue.

Functions get other code (see engine.py), so names imported before tracing started are seen too.
"""

from __future__ import annotations

import functools
import inspect
import sys
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from disttrace.capture.calls.call_table import Calls
from disttrace.capture.instrumentation.constructors import plain_value
from disttrace.capture.wrapping.context import Capture
from disttrace.journal.format import COMPOSED
from disttrace.recording.operation import Operation, ThreadState, retail

PART = "composed operations"

_C10D = "torch.distributed.distributed_c10d"
_RENDEZVOUS = "torch.distributed.rendezvous"


@dataclass(frozen=True, slots=True)
class Row:
    """One function: where it stands, and the operation's name where it is another."""

    module: str
    function: str
    op: str | None = None
    joins: bool = False  # makes groups: what torch registers about them is asked for afterwards


ROWS: tuple[Row, ...] = (
    Row(_C10D, "init_process_group", joins=True),
    Row(_C10D, "new_group", joins=True),
    Row(_C10D, "new_subgroups", joins=True),
    Row(_C10D, "new_subgroups_by_enumeration", joins=True),
    Row(_C10D, "split_group", joins=True),
    Row(_C10D, "shrink_group", joins=True),
    Row(_C10D, "destroy_process_group"),
    Row(_C10D, "all_gather_object"),
    Row(_C10D, "gather_object"),
    Row(_C10D, "broadcast_object_list"),
    Row(_C10D, "scatter_object_list"),
    Row(_C10D, "send_object_list"),
    Row(_C10D, "recv_object_list"),
    Row(_C10D, "batch_isend_irecv"),
    Row(_RENDEZVOUS, "_env_rendezvous_handler", "rendezvous"),
    Row(_RENDEZVOUS, "_tcp_rendezvous_handler", "rendezvous"),
    Row(_RENDEZVOUS, "_file_rendezvous_handler", "rendezvous"),
)

# Arguments that say nothing, or too much, about the operation.
_LEFT_OUT = frozenset(
    {"group", "object_list", "p2p_op_list", "object_gather_list", "obj", "object"}
)


def install(capture: Capture) -> None:
    """Give every function that this torch has its wrapper."""
    calls = Calls(capture.sites)
    capture.on_fork.append(calls.forget)
    for row in ROWS:
        module = sys.modules.get(row.module)
        function = getattr(module, row.function, None)
        if function is not None:
            capture.engine.function(
                PART, function, functools.partial(_wrapper, capture, calls, row)
            )


def _wrapper(
    capture: Capture, calls: Calls, row: Row, original: types.FunctionType
) -> Callable[..., Any]:
    signature = inspect.signature(original)
    op = row.op or row.function

    def begin(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Operation | None:
        thread = capture.recorder.threads.state
        if thread.inside:
            return None
        try:
            bound = signature.bind_partial(*args, **kwargs)
        except TypeError:  # torch will raise it
            return None
        operation = _begin(capture, calls, op, bound.arguments, sys._getframe(3))
        enter(thread, operation)
        return operation

    def run(*args: Any, **kwargs: Any) -> Any:
        operation = None
        try:
            operation = begin(args, kwargs)
        except BaseException as error:
            capture.fail(PART, error)
        if operation is None:
            return original(*args, **kwargs)
        try:
            result = original(*args, **kwargs)
        except BaseException as error:
            leave(capture, operation, error)
            raise
        if row.joins:
            _joined(capture)
        leave(capture, operation, None)
        return result

    def run_first(*args: Any, **kwargs: Any) -> Iterator[Any]:
        """A generator is the operation up to its first value, the store that it meets in."""
        operation = None
        try:
            operation = begin(args, kwargs)
        except BaseException as error:
            capture.fail(PART, error)
        values = original(*args, **kwargs)
        if operation is not None:
            try:
                first = next(values)
            except BaseException as error:
                leave(capture, operation, error)
                raise
            leave(capture, operation, None)
            yield first
        yield from values

    return run_first if inspect.isgeneratorfunction(original) else run


def _begin(
    capture: Capture, calls: Calls, op: str, arguments: dict[str, Any], frame: Any
) -> Operation:
    entry = _group_entry(capture, arguments.get("group"), op)
    given: dict[str, Any] = {}
    for name, value in arguments.items():
        if name not in _LEFT_OUT:
            plain = _plain(value)
            if plain is not None:
                given[name] = plain
    if op == "init_process_group":
        _claim(capture, given)
    group, backend = (None, None) if entry is None else (entry.n, entry.backend(None))
    keys = {"kind": COMPOSED, "group": group, "backend": backend, "args": given or None}
    return capture.begin_alone(calls, frame, op, (group, str(given)), {**keys, "async": False})


def enter(thread: ThreadState, operation: Operation) -> None:
    """From here on the thread's operations are children of ``operation``."""
    thread.parents.append(operation.n)
    retail(thread)


def leave(capture: Capture, operation: Operation, error: BaseException | None) -> None:
    """The composed operation is over."""
    try:
        thread = capture.recorder.threads.state
        if operation.n in thread.parents:
            del thread.parents[thread.parents.index(operation.n) :]
            retail(thread)
        if error is None:
            capture.recorder.end(operation)
        else:
            capture.recorder.failed(operation, error, on_issue=False)
    except BaseException as ours:
        capture.fail(PART, ours)


def _claim(capture: Capture, given: dict[str, Any]) -> None:
    """Rank and world size as this process claims them towards the others."""
    import os

    claims = {}
    for name, variable in (("rank", "RANK"), ("world_size", "WORLD_SIZE")):
        value = given.get(name)
        if value is None or value == -1:
            value = os.environ.get(variable)
        try:
            claims[name] = int(value) if value is not None else None
        except ValueError:  # torch will say what is wrong with it
            claims[name] = None
    local = os.environ.get("LOCAL_RANK", "")
    capture.identified(local_rank=int(local) if local.isdecimal() else None, **claims)


def _joined(capture: Capture) -> None:
    """Ask torch for the members and names of the groups that exist now."""
    try:
        from torch.distributed import distributed_c10d as c10d

        groups = capture.groups
        for group in list(getattr(c10d._world, "pg_map", ())):
            entry = groups.of(group)
            if entry.keys.get("ranks") is None:
                groups.refresh(group, entry)
    except BaseException as error:
        capture.fail(PART, error)


def _group_entry(capture: Capture, group: Any, op: str) -> Any:
    """The group an operation is on: the default group where none is given."""
    from torch._C._distributed_c10d import ProcessGroup

    if isinstance(group, ProcessGroup):
        return capture.groups.of(group)
    if group is not None or not op.endswith(("_object", "_object_list")):
        return None
    from torch.distributed import distributed_c10d as c10d

    default = getattr(getattr(c10d, "_world", None), "default_pg", None)
    return capture.groups.of(default) if default is not None else None


def _plain(value: Any) -> Any:
    plain = plain_value(value)
    if plain is None and value is not None and type(value).__name__ in ("device", "Backend"):
        return str(value)
    return plain
