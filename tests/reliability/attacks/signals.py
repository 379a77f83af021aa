"""Signals: each goes where it would have gone, and does there what it would have done."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from typing import Any

from reliability.attacks.ground import SCRIPT, STALL_S, ran, reduce, say


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


def handler_that_raises(dist: Any) -> None:
    """Each time-out that an interval timer's handler raises comes out of the loop."""
    store = dist.HashStore()
    raised = caught = 0
    armed = False
    heard = time.monotonic()

    def handler(*_: object) -> None:
        nonlocal raised, armed
        if armed:
            armed = False
            raised += 1
            raise TimeoutError

    def watch() -> None:
        while time.monotonic() - heard < 20:
            time.sleep(0.5)
        say(lost=raised - caught)
        os._exit(9)

    threading.Thread(target=watch, daemon=True).start()
    signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.003, 0.003)
    until = time.monotonic() + 8
    while (heard := time.monotonic()) < until:
        try:
            armed = True
            while True:
                reduce(dist, 5)
                store.set("a", "b" * 50)
        except TimeoutError:
            caught += 1
    signal.setitimer(signal.ITIMER_REAL, 0)
    say(lost=raised - caught, some=raised > 50)


def interrupted_traceback() -> None:
    """Ctrl-C in a wait: the frames of the traceback are the program's and torch's."""
    import traceback

    import torch
    import torch.distributed as dist

    store = dist.TCPStore("127.0.0.1", 0, 1, True, wait_for_workers=False)
    threading.Timer(1.0, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        for _ in range(10):
            try:
                store.wait(["never"], __import__("datetime").timedelta(seconds=0.5))
            except (dist.DistStoreError, RuntimeError):
                continue
    except KeyboardInterrupt as error:
        frames = [frame.name for frame in traceback.extract_tb(error.__traceback__)]
        say(frames=frames, torch=bool(torch.ones(1).sum()))
