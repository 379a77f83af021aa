"""Stacks of a process that cannot take them itself: it holds the GIL for ever, or is being killed.

``faulthandler`` of the standard library writes them in C, without the GIL, as text into the
definitions: a watchdog of it, which the background thread puts off as long as it runs, and a
handler for a SIGTERM that nobody handles, after which the process ends as it would have.

There is one watchdog per process, and it is the program's if the program wants it: as soon as it
calls ``dump_traceback_later`` ours is not set any more. Where ``faulthandler`` was imported before
we came one may be running already, and nobody can tell: it is a thread that is not Python's, so
where there is such a thread none is set.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any

from disttrace.capture.wrapping.context import Capture
from disttrace.journal.format import DUMPED

PART = "stacks without the GIL"
SHORTEST_S = 1.5
OF_LIMIT = 0.7
"""So much of the limit the background thread may be kept from running before it is held so."""
FEW = 8
"""Threads beyond which no watchdog is set. Many that take turns keep ours waiting as long as one
that holds the GIL, and a dump of stacks that move is not safe: with 64 it ended the program by
SIGSEGV (`tests/reliability/many_threads.py`)."""


class GilFreeStacks:
    """The watchdog and the handler; all methods but ``install`` and ``stop`` are the thread's."""

    def __init__(self, capture: Capture, stall_s: float) -> None:
        self._capture = capture
        self._after_s = max(SHORTEST_S, OF_LIMIT * stall_s)
        self._register: Callable[..., None] | None = None
        self._later: Callable[..., None] | None = None
        self._cancel: Callable[[], None] | None = None
        self._file = -1
        self._stat = os.stat_result((0,) * 10)
        self._set_at = 0
        self._handles = False

    def install(self) -> None:
        """Once, when tracing begins: whatever the program does from now on is seen."""
        free = "faulthandler" not in sys.modules or _only_python_threads()
        import faulthandler

        engine = self._capture.engine
        self._register = faulthandler.register
        engine.value(PART, faulthandler, "register", self._registers(self._register))
        engine.on_undo(PART, "watchdog and handler", self.stop)
        if not free:
            return
        self._later = faulthandler.dump_traceback_later
        self._cancel = faulthandler.cancel_dump_traceback_later
        engine.value(PART, faulthandler, "dump_traceback_later", self._theirs(self._later))

    def start(self, definitions: int) -> None:
        """Write into this file from now on."""
        self.stop()
        self._file = os.dup(definitions)
        self._stat = os.fstat(self._file)
        self._handle()

    def _handle(self) -> None:
        if self._handles or self._register is None:
            return
        if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            # Only of the thread that gets it, the main one unless that blocks it: its own frames
            # cannot move meanwhile, those of threads that run could, and end us by SIGSEGV.
            self._register(signal.SIGTERM, file=self._file, all_threads=False, chain=True)
            self._handles = True

    def put_off(self, now: int) -> None:
        """We run: whoever kept us from it has let go. ``now``: nanoseconds of a steady clock."""
        if self._file < 0:
            return
        if not self._is_ours():
            self._file = -1  # the program closed all files, and this number may be another's
            self.stop()
            return
        self._handle()
        after = round(self._after_s * 1e9)
        later = self._later
        if later is None or now - self._set_at < after // 3:
            return
        if self._set_at and now - self._set_at >= after:
            self._capture.recorder.note(DUMPED)  # what was written meanwhile is history
        if threading.active_count() > FEW:
            if self._set_at and self._cancel is not None:
                self._cancel()
            self._set_at = 0
            return
        self._set_at = now
        later(self._after_s, file=self._file)

    def pause(self) -> None:
        """Before a fork: the watchdog is a thread, and would be waited for in the child; and what
        ends the child must not be told as ours.
        """
        if self._set_at and self._cancel is not None:
            self._cancel()
        self._set_at = 0
        if self._handles and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            import faulthandler

            faulthandler.unregister(signal.SIGTERM)
        self._handles = False

    def stop(self) -> None:
        """Nothing is written any more; handlers that the program has set since stay."""
        self.pause()
        if self._file >= 0 and self._is_ours():
            os.close(self._file)
        self._file = -1

    def _is_ours(self) -> bool:
        try:
            return os.path.samestat(os.fstat(self._file), self._stat)
        except OSError:
            return False

    def _theirs(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def dump_traceback_later(*args: Any, **kwargs: Any) -> Any:
            self._later = None  # from now on it is the program's
            self._set_at = 0
            return original(*args, **kwargs)

        return dump_traceback_later

    def _registers(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def register(signum: int, *args: Any, **kwargs: Any) -> Any:
            done = original(signum, *args, **kwargs)
            if signum == signal.SIGTERM:
                self._handles, self._register = False, None  # it is the program's now
            return done

        return register


def _only_python_threads() -> bool:
    try:
        return len(os.listdir("/proc/self/task")) == len(sys._current_frames())
    except OSError:
        return False
