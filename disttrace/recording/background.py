"""Threads of ours: the program's tools see none of them, and no signal of its is given to them.

`threading` does not know them, so they are in no list of it, and what a program has it call for
each thread (`threading.settrace`, a profiler's or a coverage's) does not run there.

The kernel hands a signal to any thread that does not block it. Where all of a program block one,
to take it by ``sigwait``, it would end the program in ours; and handlers in C would run there.
"""

from __future__ import annotations

import signal
from collections.abc import Callable

from disttrace.foreign import ours
from disttrace.journal.originals import Lock, get_ident, start_new_thread

# These are the answer to what the thread itself did, and come at once or end the process.
_OF_THE_THREAD = ("SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL", "SIGTRAP", "SIGSYS")
_KEPT_OUT = signal.valid_signals() - {getattr(signal, name) for name in _OF_THE_THREAD}

SOON_NS = 20_000_000
"""Until the live thread looks again at what may be over any time."""

running: dict[str, int] = {}
"""How many there are by name."""


class Thread:
    """Runs ``action``, which raises nothing, once it is started. It ends with the process."""

    def __init__(self, action: Callable[[], None], name: str) -> None:
        self.name = name
        self.ident: int | None = None  # of `threading.get_ident`; None until it runs
        self._action = action
        self._runs, self._began = Lock(), Lock()

    def start(self) -> bool:
        """Start it, and whatever it starts, with signals blocked; False where there can be no more
        threads, or the interpreter is about to finalize. Raises what a handler raises meanwhile.
        It runs by then: up to Python 3.11 one that does not bears the number of the thread that
        started it, and gets the exceptions that are meant for that one.
        """
        self._runs.acquire()
        self._began.acquire()
        held = signal.pthread_sigmask(signal.SIG_BLOCK, ())
        try:
            signal.pthread_sigmask(signal.SIG_BLOCK, _KEPT_OUT)
            start_new_thread(self._run, ())
        except ours(RuntimeError):
            return False
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, held)
        self._began.acquire(timeout=1)
        return True

    def join(self, timeout_s: float) -> bool:
        """Wait until it is over, at most for so long; whether it is."""
        if not self._runs.acquire(timeout=timeout_s):
            return False
        self._runs.release()
        return True

    def _run(self) -> None:
        self.ident = get_ident()
        self._began.release()
        running[self.name] = running.get(self.name, 0) + 1
        try:
            self._action()
        finally:
            running[self.name] -= 1
            self._runs.release()
