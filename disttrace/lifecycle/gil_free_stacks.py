"""Stacks of a process that cannot take them itself: it holds the GIL for ever, or is being killed.

``faulthandler`` of the standard library writes them in C, without the GIL, as text into the
definitions, and always of the thread that runs the handler: its own frames cannot move meanwhile,
those of others could, and end the program by SIGSEGV. (Its watchdog, which reads those of others,
is therefore not used.) Two signals have such a handler:

* a SIGTERM that nobody handles, after which the process ends as it would have;
* a real-time signal that nobody uses, by which the companion asks a thread that has kept the
  interpreter from running (``companion/gil_holders.py`` of the viewer). Definitions say which.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from typing import Any

from disttrace.capture.wrapping.context import Capture
from disttrace.journal.format import ANSWERS, DUMPED, HELD_NS

PART = "stacks without the GIL"
_FROM_TOP, _MOST = 7, 5
"""Of SIGRTMAX downwards: the first ones are taken by debuggers and valgrind."""


class GilFreeStacks:
    """The two handlers; ``look`` is called by the background thread."""

    def __init__(self, capture: Capture) -> None:
        self._capture = capture
        self._register: Callable[..., None] | None = None
        self._file = -1
        self._stat = os.stat_result((0,) * 10)
        self._looked_at = 0
        self._handles = False  # SIGTERM
        self._signal = 0  # by which it may be asked; 0: by none
        self._told = False

    def install(self) -> None:
        """Once, when tracing begins: what the program registers from now on is seen."""
        import faulthandler

        engine = self._capture.engine
        self._register = faulthandler.register
        engine.value(PART, faulthandler, "register", self._registers(self._register))
        engine.on_undo(PART, "handlers", self.stop)

    def start(self, definitions: int) -> None:
        """Write into this file from now on."""
        self.stop()
        self._file = os.dup(definitions)
        self._stat = os.fstat(self._file)
        self._handle()
        self._listen()

    def look(self, now: int) -> None:
        """We run: whoever kept us from it has let go. ``now``: nanoseconds of a steady clock."""
        if self._file < 0:
            return
        if not self._is_ours():
            self._file = -1  # the program closed all files, and this number may be another's
            self.stop()
            return
        recorder = self._capture.recorder
        if self._looked_at and now - self._looked_at >= HELD_NS:
            recorder.note(DUMPED)  # what was written meanwhile is history
        self._looked_at = now
        self._handle()
        if self._signal and signal.getsignal(self._signal) is not signal.SIG_DFL:
            self._signal, self._told = 0, False  # it is the program's now
        if not self._told:
            self._told = True
            native = threading.get_native_id()
            recorder.note(ANSWERS, signal=self._signal, fd=self._file, native=native)

    def pause(self) -> None:
        """Before a fork: what ends the child must not be told as ours."""
        if self._handles and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            import faulthandler

            faulthandler.unregister(signal.SIGTERM)
        self._handles = False

    def stop(self) -> None:
        """Nothing is written any more; handlers that the program has set since stay."""
        self.pause()
        if self._signal and signal.getsignal(self._signal) is signal.SIG_DFL:
            import faulthandler

            faulthandler.unregister(self._signal)
        self._signal, self._looked_at, self._told = 0, 0, False
        if self._file >= 0 and self._is_ours():
            os.close(self._file)
        self._file = -1

    def _handle(self) -> None:
        if self._handles or self._register is None:
            return
        if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            self._register(signal.SIGTERM, file=self._file, all_threads=False, chain=True)
            self._handles = True

    def _listen(self) -> None:
        """Take a signal that has no handler, be it Python's or C's."""
        taken = _taken()
        if self._register is None or taken is None:
            return
        first = signal.SIGRTMAX - _FROM_TOP
        for number in range(first, first - _MOST, -1):
            if not taken >> (number - 1) & 1 and signal.getsignal(number) is signal.SIG_DFL:
                self._register(number, file=self._file, all_threads=False, chain=False)
                self._signal = number
                return

    def _is_ours(self) -> bool:
        try:
            return os.path.samestat(os.fstat(self._file), self._stat)
        except OSError:
            return False

    def _registers(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def register(signum: int, *args: Any, **kwargs: Any) -> Any:
            done = original(signum, *args, **kwargs)
            if signum == signal.SIGTERM:
                self._handles, self._register = False, None  # it is the program's now
            elif signum == self._signal:
                self._signal, self._told = 0, False
            return done

        return register


def _taken() -> int | None:
    """A bit per signal that is ignored or has a handler; None where the kernel does not say."""
    try:
        with open("/proc/self/status", "rb") as file:
            lines = dict(line.split(b":", 1) for line in file if b":" in line)
        return int(lines[b"SigCgt"], 16) | int(lines[b"SigIgn"], 16)
    except (OSError, KeyError, ValueError):
        return None
