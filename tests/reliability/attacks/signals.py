"""Signals: each goes where it would have gone, and does there what it would have done."""

from __future__ import annotations

import os
import signal
import sys
import time

from reliability.attacks.ground import SCRIPT, STALL_S, ran, say


def waited_for_by_main() -> None:
    """A signal that the main thread has blocked waits for its sigwait, also before any group."""
    import torch.distributed as dist

    store = dist.HashStore()
    store.set("a", "b")
    time.sleep(0.5)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1, signal.SIGTERM})
    for number in (signal.SIGUSR1, signal.SIGTERM):
        os.kill(os.getpid(), number)
        time.sleep(0.2)
        say(came=int(signal.sigwait({number})))


def ended_by_each() -> None:
    """A program that handles none ends by the signal that it got, whichever that is."""
    handled_by_none = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGBUS, signal.SIGUSR1)
    for number in (*handled_by_none, signal.SIGRTMAX - 7):
        end = f"time.sleep({1.5 * STALL_S})\nos.kill(os.getpid(), {int(number)})\ntime.sleep(5)\n"
        ran([sys.executable, "-c", SCRIPT + end])
