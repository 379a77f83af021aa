"""Instrumentation of operations issued by C++ on a torch with native hooks (2.15 and later).

Hooks belong to a group, so each group gets them when it becomes known. They tell the operation, its
tensors and its root; neither the reduce operation nor the tag. A functional collective that Python
calls is known by its operator from the second call on (``functional.py``), for hooks are slow.
"""

from __future__ import annotations

import atexit
import functools
import sys
import weakref
from collections.abc import Callable
from typing import Any

import torch.distributed.distributed_c10d as c10d

from disttrace.capture.calls import arguments
from disttrace.capture.calls.arguments import CallArguments
from disttrace.capture.calls.operations import ROWS, Method
from disttrace.capture.native import functional
from disttrace.capture.objects.groups import GroupEntry
from disttrace.capture.objects.registry import Registry
from disttrace.capture.objects.works import storage
from disttrace.capture.wrapping import call_definition
from disttrace.capture.wrapping.context import Capture
from disttrace.capture.wrapping.hot_path import freeze
from disttrace.journal.format import MESSAGE
from disttrace.journal.originals import get_ident
from disttrace.recording.operation import CallRecord, ThreadState

PART = "operations issued by C++"

# The number under which our hooks stand in each group: nobody else's, we hope.
HOOK_ID = 0x64697374
_NOBODY = -1
_ROWS = {row.hook: row for row in ROWS}
_ISSUE_FAILED = RuntimeError("the operation raised when it was issued")


def supported() -> bool:
    """Whether this torch has hooks."""
    return hasattr(c10d.ProcessGroup, "register_pre_hook")


def install(capture: Capture) -> None:
    """Hook every group, now and later."""
    hooks = Hooks(capture, functional.Issuing(capture, PART).seen)
    capture.groups.on_new.append(hooks.appeared)  # in the middle of another wrapper's work
    capture.engine.on_undo(PART, "native hooks of groups", hooks.detach)
    # A group may outlive the interpreter, and then has to let go of functions of ours.
    at_exit = functools.partial(capture.guard, PART, hooks.detach)
    atexit.register(at_exit)
    capture.engine.on_undo(PART, "atexit", lambda: atexit.unregister(at_exit))
    for group in list(getattr(c10d._world, "pg_map", ())):
        hooks.attach(group, capture.groups.of(group))


class Hooks:
    """The hooks of all groups."""

    def __init__(self, capture: Capture, seen: Callable[[CallRecord], None]) -> None:
        """``seen`` is called with what was recorded."""
        self._capture = capture
        self._seen = seen
        self._groups: Registry[weakref.ref[Any]] = Registry()
        # What a thread has begun and not issued yet: an operation that raises has no post-hook.
        self._issuing = capture.issuing
        self._off = False
        self._running: list[None] = []  # one entry for each hook that runs now, on any thread
        self.appeared = functools.partial(capture.guard, PART, self.attach)

    def attach(self, group: Any, entry: GroupEntry) -> None:
        """Register our hooks with ``group``, which they must not keep alive."""
        if self._groups.get(id(group)) or not hasattr(group, "register_pre_hook"):
            return  # known, or a Backend used directly
        reference = weakref.ref(group)
        group.register_pre_hook(HOOK_ID, self._before(reference, entry))
        group.register_post_hook(HOOK_ID, self._after())
        self._groups.add(group, reference)

    def detach(self) -> None:
        """Take the hooks off; a group whose Python object died and came back keeps idle ones."""
        self._off = True
        if self.appeared in self._capture.groups.on_new:
            self._capture.groups.on_new.remove(self.appeared)
        if self._running:  # torch walks over the group's hooks now: later
            self._capture.engine.on_undo(PART, "native hooks of groups", self.detach)
            return
        for reference in list(self._groups.entries.values()):
            group = reference()
            if group is not None:
                group.unregister_pre_hook(HOOK_ID)
                group.unregister_post_hook(HOOK_ID)
        self._groups = Registry()

    def _guarded(self, run: Callable[[ThreadState, Any], None], told: Any) -> None:
        """What a hook does where C++ issues; every operation of Python's passes by hooks too."""
        thread = self._capture.recorder.threads.state
        if thread.inside or self._off:
            return
        self._running.append(None)
        try:
            run(thread, told)
        except BaseException as error:
            self._capture.fail(PART, error)
        finally:
            self._running.pop()

    def _before(self, reference: Callable[[], Any], entry: GroupEntry) -> Callable[[Any], None]:
        capture, issuing, guarded = self._capture, self._issuing, self._guarded
        failed, seen = capture.recorder.failed, self._seen
        threads, ids = capture.recorder.threads, capture.op_ids

        def before(thread: ThreadState, told: Any) -> None:
            row = _row_of(told.name)
            if row is None:
                return
            number = get_ident()
            if number in issuing:
                failed(issuing.pop(number)[0], _ISSUE_FAILED, on_issue=True)
            sent, received, root = told.input_tensors, told.output_tensors, told.root
            operation = call_definition.begin_issued(
                capture,
                thread,
                sys._getframe(2),
                (row.hook, entry, root, freeze(sent), freeze(received)),
                row,
                entry,
                lambda: (reference(), _signature(row, told, sent, received)),
            )
            seen(operation.call)
            issuing[number] = operation, [storage(t) for t in received or sent]

        def hook(told: Any) -> None:
            if entry.on_device:  # whose operations' numbers are wanted
                ids[get_ident()] = getattr(told, "op_id", -1)
            if not threads.state.inside:
                guarded(before, told)

        return hook

    def _after(self) -> Callable[[Any], None]:
        capture, issuing, guarded = self._capture, self._issuing, self._guarded

        def after(thread: ThreadState, told: Any) -> None:
            issued = issuing.pop(get_ident(), None)
            if issued is not None:
                call_definition.issued(capture, issued[0], told.work, issued[1])

        def hook(told: Any) -> None:
            if issuing:
                guarded(after, told)

        return hook


@functools.cache
def _row_of(kind: Any) -> Method | None:
    """The row of a kind of operation that hooks tell: to ask it for its name is slow."""
    return _ROWS.get(kind.name)


def _signature(row: Method, told: Any, sent: list[Any], received: list[Any]) -> CallArguments:
    named = {"inputs": sent, "outputs": received, "asynchronous": told.async_op}
    if told.root != _NOBODY:
        named["peer" if row.kind == MESSAGE else "root"] = told.root
    return arguments.of_slots(named)
