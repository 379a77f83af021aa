"""Signals: each goes where it would have gone, and does there what it would have done."""

from __future__ import annotations

import ctypes
import faulthandler
import os
import signal
import threading
import time
from typing import Any

from reliability.attacks.ground import LIBC, STALL_S, child, group, reduce, say, stall


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


def handlers_seen_by_python() -> None:
    """getsignal answers for every number as in a bare interpreter."""
    group()
    stall(2)
    odd = {n: signal.getsignal(n) for n in signal.valid_signals()}
    say(odd=sorted((n, str(h)) for n, h in odd.items() if h is not signal.SIG_DFL))


def faulthandler_is_as_it_was() -> None:
    """What the program asks of faulthandler, and what that answers."""
    group()
    unregister: Any = faulthandler.unregister
    say(enabled=faulthandler.is_enabled(), terms=unregister(signal.SIGTERM))
    stall(1)
    say(others=[n for n in range(34, 65) if unregister(n)])
    faulthandler.register(signal.SIGUSR2, all_threads=False)
    say(mine=unregister(signal.SIGUSR2))


def _ended_by(number: int) -> None:
    group()
    stall(1.5)
    os.kill(os.getpid(), number)
    time.sleep(5)


def ended_by_each() -> None:
    """A program that handles none ends by the signal that it got, whichever that is."""
    handled_by_none = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGBUS, signal.SIGUSR1)
    for number in (*handled_by_none, signal.SIGRTMAX - 7):
        say(number=int(number), code=child("signals._ended_by", int(number)).returncode)


def _foreign_mapping() -> None:
    import mmap
    import tempfile

    group()
    with tempfile.TemporaryFile() as file:
        file.truncate(1 << 16)
        mapped = mmap.mmap(file.fileno(), 1 << 16)
        file.truncate(0)
        mapped[0] = 1


def mapping_of_its_own() -> None:
    """A bus error that is the program's own ends it by SIGBUS."""
    say(code=child("signals._foreign_mapping").returncode)


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


def library_handlers() -> None:
    """C handlers of every real-time signal, set after us by a library, are called by nobody."""
    group()
    counts = (ctypes.c_int * 65)()
    proto = ctypes.CFUNCTYPE(None, ctypes.c_int)
    LIBC.signal.restype = ctypes.c_void_p
    LIBC.signal.argtypes = [ctypes.c_int, ctypes.c_void_p]

    def handler(number: int) -> None:
        counts[number] += 1

    kept = proto(handler)
    for number in (signal.SIGBUS, *range(signal.SIGRTMIN, signal.SIGRTMAX + 1)):
        LIBC.signal(number, ctypes.cast(kept, ctypes.c_void_p))
    holder = ctypes.PyDLL(None)
    until = time.monotonic() + 4 * STALL_S
    while time.monotonic() < until:
        holder.usleep(900_000)  # with the GIL held
    say(called=[n for n in range(65) if counts[n]])


def stopped_and_continued(dist: Any) -> None:
    """A stop and a continue in a stall change nothing but the time."""
    pid = os.getpid()
    if os.fork() == 0:
        for _ in range(5):
            time.sleep(STALL_S / 2)
            os.kill(pid, signal.SIGSTOP)
            time.sleep(STALL_S / 2)
            os.kill(pid, signal.SIGCONT)
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.wait()[1])
    say(code=code, reduced=reduce(dist))


def alarms_and_sleeps() -> None:
    """A sleep is as long as asked for beside an alarm without exception; select is interrupted."""
    import select

    group()
    hits: list[int] = []
    signal.signal(signal.SIGALRM, lambda number, _: hits.append(number))
    signal.setitimer(signal.ITIMER_REAL, 0.5, 0.5)
    began = time.monotonic()
    select.select([], [], [], 2 * STALL_S)
    took = time.monotonic() - began
    signal.setitimer(signal.ITIMER_REAL, 0)
    say(long_enough=took >= 2 * STALL_S, hits=len(hits) >= 4 * STALL_S - 2)


def masks_of_threads() -> None:
    """The main thread's mask is what it was, and pending signals are none."""
    group()
    stall(2)
    say(mask=sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())), pending=signal.sigpending())
