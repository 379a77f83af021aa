"""Defines the call of a signature that was not seen before, whichever part it came through; and
records what C++ issues by itself.

DDP's reducer, functional collectives and compiled graphs call no method of Python's. Whichever way
they are seen, each is recorded once: a wrapper that is passed inside a recorded call of the same
thread sees that call again.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Hashable, Sequence
from typing import Any

from disttrace import dynamo
from disttrace.capture.calls.arguments import CallArguments
from disttrace.capture.calls.operations import Method
from disttrace.capture.objects.groups import GroupEntry
from disttrace.capture.wrapping.context import Capture
from disttrace.journal.format import COLLECTIVE, MESSAGE, ON_DEVICE
from disttrace.recording.interning import Made
from disttrace.recording.operation import Counter, Operation, ThreadState

_AS_READ = ("reduce_op", "peer", "tag", "shapes", "dtypes", "bytes", "splits", "root", "args")
ANYWHERE = "*"  # a backend used directly serves whatever device it is given


def define(
    capture: Capture,
    row: Method,
    group: Any,
    entry: GroupEntry,
    signature: CallArguments,
    asynchronous: bool | None,
    origin: str,
    stack: int | None,
) -> Made:
    """The call of one signature, with its sequence: see ``Definitions.call``."""
    if entry.keys.get("ranks") is None or not entry.backends:
        capture.groups.refresh(group, entry)
    device = signature.device
    if device is None and row.op in ("barrier", "monitored_barrier"):
        device = entry.barrier_device()
    backend = entry.backend(device)
    counter = _counter(row, entry, signature, backend, not capture.recorder.exhausted)
    keys: dict[str, Any] = {
        "kind": row.kind,
        "group": entry.n,
        "backend": backend,
        "device": device if device != ANYWHERE else None,
        "async": asynchronous,
        "origin": origin,
        "stack": stack,
        **{name: getattr(signature, name) for name in _AS_READ},
    }
    if (module := capture.module_of()) is not None:
        keys["args"] = {**(signature.args or {}), **module}
    made = capture.recorder.call(row.op, synchronous=asynchronous is False, counter=counter, **keys)
    if row.kind == COLLECTIVE and counter is not None and not getattr(made[0], "what", True):
        place = capture.recorder.places.get(stack or 0, 0)
        told = (made[0], counter, entry.shared_key(backend), keys, place)
        dynamo.call_unseen(capture.recorder.courses.note, *told)
    return made


def _counter(
    row: Method, entry: GroupEntry, signature: CallArguments, backend: str | None, new: bool
) -> Counter | None:
    if row.kind != MESSAGE:
        return entry.counter(backend)
    if signature.peer is None:
        return None  # any source: numbered when the source is known
    if signature.tag is None and backend not in ON_DEVICE:
        return None  # the stream it belongs to is not known
    return entry.stream_counter(row.op, signature.peer, signature.tag, backend, new=new)


def begin_issued(
    capture: Capture,
    thread: ThreadState,
    frame: types.FrameType,
    key: tuple[Hashable, ...],
    row: Method,
    entry: GroupEntry,
    read: Callable[[], tuple[Any, CallArguments]],
) -> Operation:
    """Put the begin on record; ``read`` gives group and signature of a new key. ``frame`` is ours:
    the issuer lies outside it."""

    def new(stack: int | None) -> Made:
        group, signature = read()
        told = signature.asynchronous or None  # its issuer never waits in the same call
        return define(capture, row, group, entry, signature, told, "c++", stack)

    call, extra = capture.calls.find(frame.f_back or frame, key, new)
    return capture.recorder.begin(thread, call, extra)


def issued(capture: Capture, operation: Operation, work: Any, results: Sequence[int]) -> None:
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
