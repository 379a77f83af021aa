"""Instrumentation of methods that make groups out of groups, or end them.

torch's own functions (``split_group``, ``destroy_process_group``) are operations by themselves and
are seen elsewhere; what they make here is a group all the same.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

from disttrace.capture.calls.call_table import Calls
from disttrace.capture.instrumentation.functions import enter, leave
from disttrace.capture.wrapping.context import Capture
from disttrace.journal.format import COMPOSED
from disttrace.recording.operation import Operation

PART = "groups made out of groups"

# Method, and the operation's name.
METHODS: tuple[tuple[str, str], ...] = (
    ("split_group", "split_group"),
    ("merge_remote_group", "merge_remote_group"),
    ("shrink", "shrink_group"),
    ("reconfigure", "reconfigure"),
    ("abort", "abort"),
    ("shutdown", "shutdown"),
)


def install(capture: Capture) -> None:
    """Patch what this torch has."""
    from torch._C._distributed_c10d import Backend, ProcessGroup

    calls = Calls(capture.sites)
    capture.on_fork.append(calls.forget)
    for owner in (ProcessGroup, Backend):
        for method, op in METHODS:
            wrapper = functools.partial(_wrapper, capture, calls, op)
            capture.engine.attribute(PART, owner, method, wrapper)


def _wrapper(
    capture: Capture, calls: Calls, op: str, original: Callable[..., Any]
) -> Callable[..., Any]:
    def begin(group: Any, frame: Any) -> Operation | None:
        thread = capture.recorder.threads.state
        if thread.inside or capture.sites.is_torch(frame):
            return None
        entry = capture.groups.of(group)
        keys = {"kind": COMPOSED, "group": entry.n, "backend": entry.backend(None)}
        operation = capture.begin_alone(calls, frame, op, (entry.n,), keys)
        enter(thread, operation)
        return operation

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        operation = None
        try:
            operation = begin(self, sys._getframe(1))
        except BaseException as error:
            capture.fail(PART, error)
        try:
            result = original(self, *args, **kwargs)
        except BaseException as error:
            if operation is not None:
                leave(capture, operation, error)
            raise
        if operation is not None:
            leave(capture, operation, None)
        try:
            if op == "split_group" and result is not None:
                _split(capture, self, result, args[0] if args else kwargs.get("ranks"))
        except BaseException as error:
            capture.fail(PART, error)
        return result

    return method


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
