"""Locks, threads, queues, sleeps and polls as the interpreter's C has them.

eventlet, gevent and their like put what switches greenlets in the place of these, in the modules
themselves, before we are imported or any time later: a thread of ours would then be a greenlet of
the program's, and a lock of ours would run the program. So each module is made a second time from
its own spec, for us alone. All greenlets of a thread are one thread to us.
"""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from _thread import RLock, get_ident, get_native_id, start_new_thread
    from _thread import _local as local
    from _thread import allocate_lock as Lock  # noqa: N812
    from os import read, write
    from queue import Empty, SimpleQueue
    from select import poll
    from time import monotonic, sleep
else:

    def _original(name: str) -> Any:
        spec = importlib.util.find_spec(name)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    _threads, _queues, _files = map(_original, ("_thread", "_queue", "posix"))
    local, Lock, RLock = _threads._local, _threads.allocate_lock, _threads.RLock
    get_ident, get_native_id = _threads.get_ident, _threads.get_native_id
    start_new_thread = _threads.start_new_thread
    Empty, SimpleQueue = _queues.Empty, _queues.SimpleQueue
    read, write = _files.read, _files.write
    poll, _time = _original("select").poll, _original("time")
    monotonic, sleep = _time.monotonic, _time.sleep

PATIENCE_S = 1.0
_stuck = ""
"""A lock as text, whose owner stands still."""


def patient(lock: RLock) -> RLock:
    """``lock``; a new one where its owner stands still: a signal handler, finalizer or callback of
    the collector has struck there, and may wait for the thread that calls this. That one goes on
    after a second, as if the handler itself had called. Until then it waits in the lock's queue,
    for among many threads one that only looks never finds it free.
    """
    global _stuck
    until, seen, own = 0.0, "", f" owner={get_ident()} "
    while (text := repr(lock)).startswith("<locked") and own not in text:
        if text != seen:
            until, seen = monotonic() + (0.02 if text == _stuck else PATIENCE_S), text
        elif monotonic() > until:
            _stuck = text
            return RLock()
        try:
            queued = lock.acquire(timeout=0.02 if text == _stuck else 0.1)
        finally:  # also where a handler raises as it is taken
            if own in repr(lock):
                lock.release()
        if queued:
            break
    return lock


__all__ = [
    "PATIENCE_S", "Empty", "Lock", "RLock", "SimpleQueue", "get_ident", "get_native_id", "local",
    "monotonic", "patient", "poll", "read", "sleep", "start_new_thread", "write",
]  # fmt: skip
