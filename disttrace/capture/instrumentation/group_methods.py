"""Instrumentation of methods that make groups out of groups, or end them.

torch's own functions (``split_group``, ``destroy_process_group``) are operations by themselves and
are seen elsewhere; what they make here is a group all the same.
"""

from __future__ import annotations

import functools
from typing import Any

from torch._C._distributed_c10d import Backend, ProcessGroup

from disttrace.capture.wrapping.context import Capture
from disttrace.capture.wrapping.wrappers import Function, compose
from disttrace.recording.operation import Operation

PART = "groups made out of groups"

METHODS = ("split_group", "merge_remote_group", "shrink", "reconfigure", "abort", "shutdown")
_RENAMED = {"shrink": "shrink_group"}  # as torch's function for the same


def install(capture: Capture) -> None:
    """Patch what this torch has."""
    for owner in (ProcessGroup, Backend):
        for method in METHODS:
            wrapper = functools.partial(_wrapper, capture, _RENAMED.get(method, method))
            capture.engine.attribute(PART, owner, method, wrapper)


def _wrapper(capture: Capture, op: str, original: Function) -> Function:
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
