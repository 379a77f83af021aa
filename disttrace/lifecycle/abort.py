"""Ends the process from the background thread, and loses nothing that was printed before."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable
from typing import Any

from disttrace.journal.standard_library import StandardLibrary
from disttrace.recording import background

WITHIN_S = 1.0
"""In all. A process that still lives two seconds after it was to end is killed, with another exit
code."""


def end(code: int) -> None:
    """End with ``code``, once the outputs of Python and of C are flushed or time is up.

    A pipe without a reader, a lock that a thread holds, a stream of the program's that raises:
    each is waited for in a thread of its own, for ``WITHIN_S`` at most.
    """
    until = time.monotonic() + WITHIN_S
    streams = {id(s): s for s in (sys.stdout, sys.stderr, sys.__stdout__) if s is not None}
    waiting = [_in_a_thread(_flush_c), *(_in_a_thread(_flush_of(s)) for s in streams.values())]
    for thread in waiting:
        if thread is not None:
            thread.join(max(0.0, until - time.monotonic()))
    os._exit(code)


def _in_a_thread(flush: Callable[[], object]) -> background.Thread | None:
    def quietly() -> None:
        with contextlib.suppress(BaseException):
            flush()

    thread = background.Thread(quietly, "disttrace-flush")
    return thread if thread.start() else None


def _flush_of(stream: Any) -> Callable[[], object]:
    return lambda: stream.flush()  # which it may not have


def _flush_c() -> None:
    with StandardLibrary():
        import ctypes
    libc = ctypes.CDLL(None)
    if hasattr(libc, "stdout"):  # it has another name on macOS
        libc.fflush(ctypes.c_void_p.in_dll(libc, "stdout"))
    libc.fflush(None)  # waits for a thread that reads from a stream
