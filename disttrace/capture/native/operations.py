"""Operations that C++ issues by itself: what the dispatcher kernel and the native hooks share.

DDP's reducer, functional collectives and compiled graphs call no method of Python's. Whichever way
they are seen, the begin, the end and the Work are handled here, and each is recorded once: a
wrapper that is passed inside a recorded call of the same thread sees that call again.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Hashable, Sequence
from typing import Any

from disttrace.capture.calls.arguments import Signature
from disttrace.capture.calls.operations import Native
from disttrace.capture.objects.groups import GroupEntry
from disttrace.capture.wrapping.call_definition import Define, definition
from disttrace.capture.wrapping.context import Capture
from disttrace.recording.operation import Operation, ThreadState

ORIGIN = "c++"


class NativeOperations:
    """Begins and ends of operations issued by C++."""

    def __init__(self, capture: Capture) -> None:
        self._capture = capture

    def begin(
        self,
        thread: ThreadState,
        frame: types.FrameType,
        key: tuple[Hashable, ...],
        describe: Callable[[], Define],
    ) -> Operation:
        """Put the begin on record; ``describe`` is called only for a key not seen before.

        ``frame`` is ours: the issuer's Python frame, if it has one, lies outside it.
        """
        outside = frame.f_back or frame
        call, extra = self._capture.calls.find(outside, key, lambda stack: describe()(stack))
        return self._capture.recorder.begin(thread, call, extra)

    def described(self, row: Native, group: Any, entry: GroupEntry, signature: Signature) -> Define:
        """A signature as a call record says it; its issuer never waits in the same call."""
        asynchronous = True if signature.asynchronous else None
        return definition(self._capture, row, group, entry, signature, asynchronous, ORIGIN)

    def done(self, operation: Operation, work: Any, results: Sequence[int] = ()) -> None:
        """The call returned: with a Work or without; ``results`` are the storages it fills."""
        recorder = self._capture.recorder
        if operation.call.device_ends:
            recorder.issued(operation)
            self._capture.works.device.add(operation, None, work)
        elif work is None:
            recorder.end(operation)
        else:
            recorder.issued(operation)
            self._capture.works.hold(work, operation, results)
