"""Operations that C++ issues by itself: what the dispatcher kernel and the native hooks share.

DDP's reducer, functional collectives and compiled graphs call no method of Python's. Whichever way
they are seen, the begin, the end and the Work are handled here, and each is recorded once: a
wrapper that is passed inside a recorded call of the same thread sees that call again.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Hashable, Sequence
from typing import Any

from disttrace.capture.calls.arguments import CallArguments
from disttrace.capture.calls.operations import Method
from disttrace.capture.objects.groups import GroupEntry
from disttrace.capture.wrapping.call_definition import define
from disttrace.capture.wrapping.context import Capture
from disttrace.recording.interning import Made
from disttrace.recording.operation import Operation, ThreadState


def begin(
    capture: Capture,
    thread: ThreadState,
    frame: types.FrameType,
    key: tuple[Hashable, ...],
    row: Method,
    entry: GroupEntry,
    read: Callable[[], tuple[Any, CallArguments]],
) -> Operation:
    """Put the begin on record; ``read`` gives the group and the signature of a key that was not
    seen before.

    ``frame`` is ours: the issuer's Python frame, if it has one, lies outside it.
    """

    def new(stack: int | None) -> Made:
        group, signature = read()
        told = signature.asynchronous or None  # its issuer never waits in the same call
        return define(capture, row, group, entry, signature, told, "c++", stack)

    call, extra = capture.calls.find(frame.f_back or frame, key, new)
    return capture.recorder.begin(thread, call, extra)


def done(capture: Capture, operation: Operation, work: Any, results: Sequence[int]) -> None:
    """The call returned: with a Work or without; ``results`` are the storages it fills."""
    recorder = capture.recorder
    if operation.call.device_ends:
        recorder.issued(operation)
        capture.works.device.add(operation, None, work)
    elif work is None:
        recorder.end(operation)
    else:
        recorder.issued(operation)
        capture.works.hold(work, operation, results)
