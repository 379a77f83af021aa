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

import torch.distributed.distributed_c10d as c10d

from disttrace import foreign
from disttrace.capture.wrapping.context import Capture
from disttrace.capture.wrapping.wrappers import Args, Kwargs, compose
from disttrace.identity import integer
from disttrace.recording.operation import Operation

PART = "composed operations"

_C10D = "torch.distributed.distributed_c10d"
_RENDEZVOUS = "torch.distributed.rendezvous"


class ComposedFunction(NamedTuple):
    """One function: where it stands, and the operation's name where it is another."""

    module: str
    function: str
    op: str | None = None
    joins: bool = False  # makes groups: what torch registers about them is asked for afterwards


ROWS: tuple[ComposedFunction, ...] = (
    ComposedFunction(_C10D, "init_process_group", joins=True),
    ComposedFunction(_C10D, "new_group", joins=True),
    ComposedFunction(_C10D, "new_subgroups", joins=True),
    ComposedFunction(_C10D, "new_subgroups_by_enumeration", joins=True),
    ComposedFunction(_C10D, "split_group", joins=True),
    ComposedFunction(_C10D, "shrink_group", joins=True),
    ComposedFunction(_C10D, "destroy_process_group"),
    ComposedFunction(_C10D, "all_gather_object"),
    ComposedFunction(_C10D, "gather_object"),
    ComposedFunction(_C10D, "broadcast_object_list"),
    ComposedFunction(_C10D, "scatter_object_list"),
    ComposedFunction(_C10D, "send_object_list"),
    ComposedFunction(_C10D, "recv_object_list"),
    ComposedFunction(_C10D, "batch_isend_irecv"),
    ComposedFunction(_RENDEZVOUS, "_env_rendezvous_handler", "rendezvous"),
    ComposedFunction(_RENDEZVOUS, "_tcp_rendezvous_handler", "rendezvous"),
    ComposedFunction(_RENDEZVOUS, "_file_rendezvous_handler", "rendezvous"),
)

# Arguments that say nothing, or too much, about the operation.
_LEFT_OUT = {"group", "object_list", "p2p_op_list", "object_gather_list", "obj", "object"}
_LEFT_OUT |= {"scatter_object_input_list", "scatter_object_output_list"}


def install(capture: Capture) -> None:
    """Give every function that this torch has its wrapper."""
    for row in ROWS:
        module = sys.modules.get(row.module)
        function = getattr(module, row.function, None)
        if function is not None:
            capture.engine.function(PART, function, functools.partial(_wrapper, capture, row))


def _wrapper(
    capture: Capture, row: ComposedFunction, original: types.FunctionType
) -> Callable[..., Any]:
    # The code that stands in for the function's passes every parameter, as the function names them.
    names = original.__code__.co_varnames[: original.__code__.co_argcount]
    op, recorder, groups = row.op or row.function, capture.recorder, capture.groups
    by_default = op.endswith(("_object", "_object_list"))  # on the default group
    group_at = names.index("group") if "group" in names else None
    shown = [(at, name) for at, name in enumerate(names) if name not in _LEFT_OUT]
    find = None if row.joins else capture.sites.find_call

    def enter(first: Any, args: Args, kwargs: Kwargs, frame: Any) -> Operation | None:
        thread = recorder.threads.state
        if thread.inside:
            return None
        values, caller = (first, *args), frame.f_back
        group = None if group_at is None else values[group_at]
        if group is None and by_default:
            group = c10d._world.default_pg
        entry = None
        if group is not None:
            entry = groups.get(id(group)) or groups.passed(group)
        told = [values[at] for at, _ in shown]
        told.extend(kwargs.items())
        key = op, None if entry is None else entry.n, told, caller
        call = None if find is None or caller is None else find(*key)
        if call is not None:
            return capture.step_in(recorder.begin(thread, call))
        args_of = {name: _plain(values[at]) for at, name in shown}
        args_of.update((name, _plain(value)) for name, value in kwargs.items())
        given = {name: value for name, value in args_of.items() if value is not None}
        if op == "init_process_group":
            _claim(capture, given)
        operation = capture.begin_composed(caller, op, str(given), group=entry, args=given)
        if find is not None and caller is not None and operation.call.whole:
            find(*key, operation.call)
        return operation

    def left(*_: Any, **__: Any) -> None:
        _joined(capture)

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

    generates = inspect.isgeneratorfunction(original)
    return (
        run_first
        if generates
        else compose(capture, PART, original, enter, left if row.joins else None)
    )


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


def _joined(capture: Capture) -> None:
    """Ask torch for the members and names of the groups that exist now."""
    groups = capture.groups
    for group in list(getattr(c10d._world, "pg_map", ())):
        entry = groups.of(group)
        if entry.keys.get("ranks") is None:
            groups.refresh(group, entry)


def _plain(value: Any) -> Any:
    plain = foreign.plain(value)
    if plain is None and value is not None and type(value).__name__ in ("device", "Backend"):
        return str(value)
    return plain
