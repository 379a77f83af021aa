"""Instrumentation of operations made of several: they become parents of what they issue.

Functions get other code (see patching.py), so names imported before tracing started are seen too.
"""

from __future__ import annotations

import functools
import inspect
import os
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
import torch.distributed.distributed_c10d as c10d
from torch._C._distributed_c10d import Backend, ProcessGroup

from disttrace import foreign
from disttrace.capture.wrapping.context import Capture
from disttrace.capture.wrapping.hot_path import native_wrapper
from disttrace.capture.wrapping.wrappers import Args, Function, Kwargs, Part, compose
from disttrace.identity import integer
from disttrace.recording.operation import Operation, ThreadState

PART = "composed operations"

_C10D = "torch.distributed.distributed_c10d"
_RENDEZVOUS = "torch.distributed.rendezvous"


class ComposedFunction(NamedTuple):
    """One function: where it stands, and the operation's name where it is another."""

    module: str
    function: str
    op: str | None = None
    joins: bool = False  # makes groups: what torch registers about them is asked for afterwards


def _rows(module: str, names: str, *, joins: bool = False) -> list[ComposedFunction]:
    """Rows of functions that bear the names of their operations."""
    return [ComposedFunction(module, name, joins=joins) for name in names.split()]


ROWS: tuple[ComposedFunction, ...] = (
    *_rows(_C10D, "init_process_group new_group split_group shrink_group", joins=True),
    *_rows(_C10D, "new_subgroups new_subgroups_by_enumeration", joins=True),
    *_rows(_C10D, "destroy_process_group all_gather_object gather_object"),
    *_rows(_C10D, "broadcast_object_list scatter_object_list send_object_list recv_object_list"),
    *_rows(_C10D, "batch_isend_irecv"),
    ComposedFunction(_RENDEZVOUS, "_env_rendezvous_handler", "rendezvous"),
    ComposedFunction(_RENDEZVOUS, "_tcp_rendezvous_handler", "rendezvous"),
    ComposedFunction(_RENDEZVOUS, "_file_rendezvous_handler", "rendezvous"),
)

METHODS = ("split_group", "merge_remote_group", "shrink", "reconfigure", "abort", "shutdown")
"""Of groups, that make groups out of them, or end them: torch's own functions call them too."""
_RENAMED = {"shrink": "shrink_group"}  # as torch's function for the same

# Arguments that say nothing, or too much, about the operation.
_LEFT_OUT = {"group", "object_list", "p2p_op_list", "object_gather_list", "obj", "object"}
_LEFT_OUT |= {"scatter_object_input_list", "scatter_object_output_list"}


def install(capture: Capture) -> None:
    """Give every function and method that this torch has its wrapper."""
    for row in ROWS:
        module = sys.modules.get(row.module)
        function = getattr(module, row.function, None)
        if function is not None:
            capture.engine.function(PART, function, functools.partial(_wrapper, capture, row))
    for owner in (ProcessGroup, Backend):
        for method in METHODS:
            wrapper = functools.partial(_regrouping, capture, _RENAMED.get(method, method))
            capture.engine.attribute(PART, owner, method, wrapper)


class _Composed(Part):
    """One of them, and the positions of its arguments: code in place of the function's passes every
    parameter, as the function names them."""

    def __init__(self, capture: Capture, row: ComposedFunction, names: tuple[str, ...]) -> None:
        super().__init__(capture, PART, on_issue=False)
        self.op = row.op or row.function
        self.shown = [(at, name) for at, name in enumerate(names) if name not in _LEFT_OUT]
        self.group_at = names.index("group") if "group" in names else -1
        self.by_default = self.op.endswith(("_object", "_object_list"))  # on the default group

    def begin(
        self, thread: ThreadState, frame: Any, first: Any, /, *args: Any, **kwargs: Any
    ) -> Any:
        """Begin it, called by ``frame``; None: it is part of another call."""
        if thread.inside:
            return None
        values, groups = (first, *args), self.capture.groups
        group = None if self.group_at < 0 else values[self.group_at]
        if group is None and self.by_default:
            group = c10d._world.default_pg
        entry = None
        if group is not None:
            entry = groups.get(id(group)) or groups.passed(group)
        args_of = {name: _plain(values[at]) for at, name in self.shown}
        args_of.update((name, _plain(value)) for name, value in kwargs.items())
        told = {name: value for name, value in args_of.items() if value is not None}
        if self.op == "init_process_group":
            _claim(self.capture, told)
        return self.capture.begin_composed(frame.f_back, self.op, str(told), group=entry, args=told)


def _wrapper(
    capture: Capture, row: ComposedFunction, original: types.FunctionType
) -> Callable[..., Any]:
    part = _Composed(capture, row, original.__code__.co_varnames[: original.__code__.co_argcount])
    threads, numbers = capture.recorder.threads, capture.groups.numbers

    def enter(first: Any, args: Args, kwargs: Kwargs, frame: Any) -> Operation | None:
        begun: Operation | None = part.begin(threads.state, frame, first, *args, **kwargs)
        return begun

    def joined(*_: Any, **__: Any) -> None:
        """Ask torch for the members and names of the groups that exist now."""
        groups = capture.groups
        for group in list(getattr(c10d._world, "pg_map", ())):
            entry = groups.of(group)
            if entry.keys.get("ranks") is None:
                groups.refresh(group, entry)

    def run_first(first: Any, /, *args: Any, **kwargs: Any) -> Iterator[Any]:
        """A generator is the operation up to its first value, the store that it meets in."""
        operation = capture.guard(PART, enter, first, args, kwargs, sys._getframe(1))
        values = original(first, *args, **kwargs)
        if operation is not None:
            try:
                value = next(values)
            except BaseException as error:
                capture.leave(PART, operation, error)
                raise
            capture.leave(PART, operation)
            yield value
        yield from values

    if inspect.isgeneratorfunction(original):
        return run_first
    if row.joins:
        return compose(capture, PART, original, enter, joined)
    made = native_wrapper(
        part,
        original,
        part.op,
        torchs=True,
        numbers=numbers,
        shown=tuple([at for at, _ in part.shown]),
        group_at=part.group_at,
        by_default=(c10d, "_world", "_default_pg") if part.by_default else None,
    )
    return compose(capture, PART, original, enter) if made is None else made


def _claim(capture: Capture, given: dict[str, Any]) -> None:
    """Rank and world size as this process claims them towards the others."""
    claims = {}
    for name, variable in (("rank", "RANK"), ("world_size", "WORLD_SIZE")):
        value = given.get(name)
        if value is None or value == -1:
            value = os.environ.get(variable)
        if value is not None:
            claims[name] = integer(str(value))  # torch will say what is wrong with it
    claims["local_rank"] = integer(os.environ.get("LOCAL_RANK"))
    capture.on_identity({key: number for key, number in claims.items() if number is not None})


def _regrouping(capture: Capture, op: str, original: Function) -> Function:
    def enter(group: Any, args: Any, kwargs: Any, frame: Any) -> Operation | None:
        torchs = frame is not None and capture.sites.is_torch(frame.f_code.co_filename)
        if torchs or capture.recorder.threads.state.inside:
            return None
        return capture.begin_composed(frame, op, group=capture.groups.of(group))

    def left(begun: Any, result: Any, group: Any, *args: Any, **kwargs: Any) -> None:
        if op == "split_group" and result is not None:
            _split(capture, group, result, args[0] if args else kwargs.get("ranks"))

    return compose(capture, PART, original, enter, left)


def _split(capture: Capture, parent: Any, group: Any, members: Any) -> None:
    """C++ made the group: its prefix is its name, below the parent's."""
    groups, stores = capture.groups, capture.stores
    if groups.get(id(group)) is not None:
        return
    store = None
    if hasattr(group, "get_group_store"):
        store = group.get_group_store()
        if stores.get(id(store)) is None:
            stores.prefixed(store, f"{group.group_name}/", parent.get_group_store())
    above = groups.of(parent)
    entry = groups.group_made(group, store, group.rank(), group.size())
    entry.backends.update(above.backends)
    ranks = above.keys.get("ranks")
    groups.update(
        entry,
        name=group.group_name,
        backends=dict(entry.backends) or None,
        ranks=[ranks[member] for member in members] if ranks and members else None,
    )


def _plain(value: Any) -> Any:
    return str(value) if type(value) is torch.device else foreign.plain(value)
