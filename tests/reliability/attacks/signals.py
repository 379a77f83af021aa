"""Signals: each goes where it would have gone, and does there what it would have done."""

from __future__ import annotations

import os
import signal
import time

from reliability.attacks.ground import say


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
