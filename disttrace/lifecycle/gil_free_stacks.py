"""Stacks of a process that cannot take them itself: it holds the GIL for ever, or is being killed.

``faulthandler`` of the standard library writes them in C, without the GIL, as text into the
definitions, and always of the thread that runs the handler: its own frames cannot move meanwhile,
those of others could, and end the program by SIGSEGV. (Its watchdog, which reads those of others,
is therefore not used.) It is called by handlers of our own (``_answers.c``), which look first that
the descriptor is the journal's, for two signals:

* an unhandled SIGTERM, after which the process ends as it would have;
* an unused real-time signal, which a thread gets that has kept the interpreter from
  running. It has a handler only meanwhile, and is sent by a thread of ours without Python,
  which the companion asks to (``companion/gil_holders.py`` of the viewer). Definitions name it.

Where nothing was compiled there is none of this.
"""

from __future__ import annotations

import os
from _signal import SIG_DFL, SIGRTMAX, SIGTERM, getsignal  # type: ignore[import-not-found]  # signal's compares
from collections.abc import Callable
from typing import Any

from disttrace.capture.wrapping.context import Capture
from disttrace.foreign import ours
from disttrace.journal import compiled
from disttrace.journal.descriptors import close_own, copy_aside, still
from disttrace.journal.format import ANSWERS, DUMPED, HELD_NS
from disttrace.journal.originals import get_native_id
from disttrace.journal.proc import status

PART = "stacks without the GIL"
_FROM_TOP, _MOST = 7, 5
"""Of SIGRTMAX downwards: the first ones are taken by debuggers and valgrind."""
_INIT = 1
"""The kernel keeps from this process what it does not handle, and with a handler would not."""


class GilFreeStacks:
    """Handlers and the thread that asks; ``look`` is called by the background thread."""

    def __init__(self, capture: Capture) -> None:
        self._capture = capture
        self._native: Any = None
        self._register: Callable[..., None] | None = None
        self._unregister: Callable[[int], Any] | None = None
        self._file = -1
        self._stat: os.stat_result | None = None
        self._looked_at = 0
        self._signal = 0  # what faulthandler knows, and threads are sent; 0: nothing
        self._told: tuple[int, int] | None = None

    def install(self) -> None:
        """Once, to see what the program registers from now on; before, nothing here acts."""
        try:
            self._native = compiled.load("lifecycle._answers")
        except ours(ImportError):
            return
        import faulthandler

        engine = self._capture.engine
        self._register, self._unregister = faulthandler.register, faulthandler.unregister
        engine.value(PART, faulthandler, "register", self._registers(self._register))
        engine.value(PART, faulthandler, "unregister", self._unregisters(self._unregister))
        engine.on_undo(PART, "handlers", self.stop)

    def start(self, definitions: int) -> None:
        self.stop()
        number = None if self._register is None else _unused()
        if self._register is None or number is None:
            return
        file = copy_aside(definitions)
        self._signal = number
        self._register(number, file=file, all_threads=False, chain=False)
        self._native.take(number, file)
        self._file, self._stat = file, os.fstat(file)  # all is in place: ``look`` may come
        self._handle()
        self._native.start()

    def look(self, now: int) -> None:
        """The GIL is free again. ``now``: nanoseconds of a steady clock."""
        number = self._signal  # once: the program's thread may stop this meanwhile
        if self._file < 0 or not number:
            return
        if still(self._file, self._stat) is None:
            self._file = -1  # the program closed all files, and this number may be another's
            self.stop()
            return
        recorder = self._capture.recorder
        if self._looked_at and now - self._looked_at >= HELD_NS:
            recorder.note(DUMPED)  # what was written meanwhile is history
        self._looked_at = now
        self._handle()
        if not self._is_free(number):
            self._native.stop()  # it is the program's now
        asked = self._native.runs()
        state = (number if asked else 0, asked)
        if state != self._told:
            self._told = state
            native = get_native_id()
            recorder.note(ANSWERS, signal=state[0], fd=self._file, native=native, asked=asked)

    def sync(self, segment: int) -> bool:
        """Have segment and definitions synced meanwhile; False: no thread is free for it."""
        return self._file >= 0 and bool(self._native.sync(segment, self._file))

    def pause(self) -> None:
        """Before a fork: Python counts threads, and warns of them."""
        if self._native is not None:
            self._native.stop()

    def resume(self) -> None:
        if self._file >= 0 and self._is_free(self._signal):
            self._native.start()

    def stop(self) -> None:
        """Nothing is written any more; handlers that the program has set since stay."""
        if self._native is None:
            return
        self._native.stop()
        self._native.leave()
        if self._signal and self._unregister is not None and self._is_free(self._signal):
            self._unregister(self._signal)
        self._signal, self._looked_at, self._told = 0, 0, None
        close_own(self._file, self._stat)
        self._file = -1

    def _handle(self) -> None:
        if os.getpid() != _INIT and getsignal(SIGTERM) is SIG_DFL:
            self._native.handle_term()

    def _is_free(self, number: int) -> bool:
        """Whether neither Python nor the kernel knows of a handler of the program's."""
        return getsignal(number) is SIG_DFL and bool(self._native.is_free(number))

    def _registers(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def register(signum: int, *args: Any, **kwargs: Any) -> Any:
            if self._signal and signum == self._signal:
                self.stop()  # it is the program's now, and was never ours as far as it can see
            return original(signum, *args, **kwargs)

        return register

    def _unregisters(self, original: Callable[[int], Any]) -> Callable[[int], Any]:
        def unregister(signum: int, /) -> Any:
            if self._signal and signum == self._signal:
                return False
            return original(signum)

        return unregister


def _unused() -> int | None:
    """A signal without a handler, of Python or C, that is not ignored; None: unknown, or none."""
    lines = status("self")
    try:
        taken = int(lines["SigCgt"], 16) | int(lines["SigIgn"], 16)  # a bit for each
    except ours(KeyError, ValueError):
        return None
    first = SIGRTMAX - _FROM_TOP
    for number in range(first, first - _MOST, -1):
        if not taken >> (number - 1) & 1 and getsignal(number) is SIG_DFL:
            return number
    return None
