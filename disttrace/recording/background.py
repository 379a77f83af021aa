"""Starts a thread of ours, to which no signal of the program's is ever given.

The kernel hands a signal that is sent to the process to any thread that does not block it. Where
all threads of a program block one, to take it by ``sigwait`` or a signalfd, it would end the
program in ours; and a handler in C that expects the program's thread would run there.
"""

from __future__ import annotations

import signal
import threading

# These are the answer to what the thread itself did, and come at once or end the process.
_OF_THE_THREAD = ("SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL", "SIGTRAP", "SIGSYS")
_KEPT_OUT = signal.valid_signals() - {getattr(signal, name) for name in _OF_THE_THREAD}


def start(thread: threading.Thread) -> None:
    """Start it, and whatever it starts, with signals blocked.

    Raises RuntimeError where there can be no more threads, and what a handler raises meanwhile.
    """
    held = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        signal.pthread_sigmask(signal.SIG_BLOCK, _KEPT_OUT)
        thread.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, held)
