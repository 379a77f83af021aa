"""The door for operations issued by C++ on a torch with native hooks (2.15 and later).

Hooks belong to a group, so each group gets them when it becomes known. They tell the operation, its
tensors and its root; neither the reduce operation nor the tag.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any

from disttrace.capture import arguments, dynamo
from disttrace.capture.arguments import Signature
from disttrace.capture.context import Capture
from disttrace.capture.groups import GroupEntry
from disttrace.capture.keys import freeze
from disttrace.capture.native import NativeOperations
from disttrace.capture.operations import NATIVE, Native
from disttrace.capture.works import storage
from disttrace.journal.format import MESSAGE
from disttrace.operation import Operation

PART = "operations issued by C++"

# The number under which our hooks stand in each group: nobody else's, we hope.
HOOK_ID = 0x64697374
_NOBODY = -1
_ISSUE_FAILED = RuntimeError("the operation raised when it was issued")


def supported() -> bool:
    """Whether this torch has hooks."""
    from torch._C._distributed_c10d import ProcessGroup

    return hasattr(ProcessGroup, "register_pre_hook")


def install(capture: Capture) -> None:
    """Hook every group, now and later."""
    from torch.distributed import distributed_c10d as c10d

    hooks = Hooks(capture)
    capture.groups.on_new.append(hooks.appeared)
    capture.engine.on_undo(PART, "native hooks of groups", hooks.detach)
    for group in list(getattr(c10d._world, "pg_map", ())):
        hooks.attach(group, capture.groups.of(group))


class Hooks:
    """The hooks of all groups."""

    def __init__(self, capture: Capture) -> None:
        self._capture = capture
        self._operations = NativeOperations(capture)
        self._rows = {row.hook: row for row in NATIVE if row.hook is not None}
        self._groups: weakref.WeakSet[Any] = weakref.WeakSet()
        # What a thread has begun and not issued yet: an operation that raises has no post-hook.
        self._issuing = capture.issuing
        self._off = False
        self._running: list[None] = []  # one entry for each hook that runs now, on any thread

    def appeared(self, group: Any, entry: GroupEntry) -> None:
        """A group became known, in the middle of another door's work."""
        try:
            self.attach(group, entry)
        except BaseException as error:
            self._capture.fail(PART, error)

    def attach(self, group: Any, entry: GroupEntry) -> None:
        """Register our hooks with ``group``, which they must not keep alive."""
        if group in self._groups or not hasattr(group, "register_pre_hook"):
            return  # known, or a Backend used directly
        reference = weakref.ref(group)
        group.register_pre_hook(HOOK_ID, self._hook(self._before(reference, entry)))
        group.register_post_hook(HOOK_ID, self._hook(self._after()))
        self._groups.add(group)

    def detach(self) -> None:
        """Take the hooks off; a group whose Python object died and came back keeps idle ones."""
        self._off = True
        if self.appeared in self._capture.groups.on_new:
            self._capture.groups.on_new.remove(self.appeared)
        if self._running:  # torch walks over the group's hooks now: later
            self._capture.engine.on_undo(PART, "native hooks of groups", self.detach)
            return
        for group in list(self._groups):
            group.unregister_pre_hook(HOOK_ID)
            group.unregister_post_hook(HOOK_ID)
        self._groups.clear()

    def _hook(self, inner: Callable[[Any], None]) -> Callable[[Any], None]:
        """``inner``, guarded, and known to run while it does."""
        running = self._running

        def hook(told: Any) -> None:
            if self._off:
                return
            running.append(None)
            try:
                inner(told)
            except BaseException as error:
                self._capture.fail(PART, error)
            finally:
                running.pop()

        for function in (hook, inner):
            dynamo.skip(function.__code__)
        return hook

    def _before(self, reference: Callable[[], Any], entry: GroupEntry) -> Callable[[Any], None]:
        threads, issuing, ident = self._capture.recorder.threads, self._issuing, threading.get_ident
        rows, operations, never_issued = self._rows, self._operations, self._never_issued

        def before(told: Any) -> None:
            thread = threads.state
            row = None if thread.inside else rows.get(told.name.name)
            if row is None:
                return
            if ident() in issuing:
                never_issued(issuing.pop(ident())[0])
            sent, received = told.input_tensors, told.output_tensors
            root = told.root
            key = (row.hook, entry, root, freeze(sent), freeze(received))
            operation = operations.begin(
                thread,
                sys._getframe(1),  # the guard's: what lies outside it is the issuer's
                key,
                lambda: operations.described(
                    row, reference(), entry, _signature(row, told, sent, received)
                ),
            )
            issuing[ident()] = operation, [storage(t) for t in received or sent]

        return before

    def _after(self) -> Callable[[Any], None]:
        threads, issuing, ident = self._capture.recorder.threads, self._issuing, threading.get_ident
        operations = self._operations

        def after(told: Any) -> None:
            issued = None if threads.state.inside else issuing.pop(ident(), None)
            if issued is not None:
                operations.done(issued[0], told.work, issued[1])

        return after

    def _never_issued(self, operation: Operation) -> None:
        self._capture.recorder.failed(operation, _ISSUE_FAILED, on_issue=True)


def _signature(row: Native, told: Any, sent: list[Any], received: list[Any]) -> Signature:
    message = row.kind == MESSAGE
    root = told.root if told.root != _NOBODY else None
    rest = {"output_shapes": [list(t.shape) for t in received]} if sent and received else None
    return arguments.signature(
        sent,
        received,
        asynchronous=told.async_op,
        root=None if message else root,
        peer=root if message else None,
        args=rest,
    )
