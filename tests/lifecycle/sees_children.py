"""Looks for children, and for news of them, in every way there is; one line per way.

`sees_children.py none|detached|kept`: what is started beside each of them, for a moment.
"""

from __future__ import annotations

import asyncio
import ctypes
import multiprocessing
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from disttrace.lifecycle import detached

LIVES_S = "0.3"
LOOKS_S = 0.8


def begin() -> None:
    """Start what must not be seen."""
    if sys.argv[1] == "none":
        return
    with open(os.devnull, "r+b") as null:
        command = ["/bin/sleep", LIVES_S]
        kept = sys.argv[1] == "kept"
        number = null.fileno()
        pid = detached.start(command, dict(os.environ), out=number, err=number, kept=kept)
    assert bool(pid) == kept


def until_over(look: Callable[[], object]) -> list[object]:
    """Look again and again; what was found, each once."""
    begin()
    found = []
    end = time.monotonic() + LOOKS_S
    while time.monotonic() < end:
        seen = look()
        if seen not in found:
            found.append(seen)
        time.sleep(0.005)
    return found


def said(ask: Callable[[], object]) -> object:
    """The answer, or the name of the exception."""
    try:
        return ask()
    except OSError as error:
        return type(error).__name__


def waitpid() -> object:
    return until_over(lambda: said(lambda: os.waitpid(-1, os.WNOHANG)))


def waitid() -> object:
    how = os.WEXITED | os.WSTOPPED | os.WCONTINUED | os.WNOHANG
    return until_over(lambda: said(lambda: os.waitid(os.P_ALL, 0, how)))


def wait_blocked() -> object:
    """In a thread, which would get whatever ends."""
    got: list[object] = []
    own = subprocess.Popen(["/bin/sleep", LIVES_S])
    thread = threading.Thread(target=lambda: got.append(os.wait()[0] == own.pid))
    thread.start()
    until_over(lambda: None)
    thread.join()
    return got, said(os.wait)


def handler() -> object:
    got: list[object] = []
    signal.signal(signal.SIGCHLD, lambda number, frame: got.append(number))
    until_over(lambda: None)
    return got


def handler_in_c() -> object:
    got: list[object] = []
    kind = ctypes.CFUNCTYPE(None, ctypes.c_int)
    kept = kind(got.append)
    libc = ctypes.CDLL(None)
    libc.signal.argtypes = [ctypes.c_int, kind]
    libc.signal(signal.SIGCHLD, kept)
    until_over(lambda: None)
    return got


def in_asyncio() -> object:
    async def main() -> object:
        got: list[object] = []
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGCHLD, lambda: got.append("told"))
        begin()
        await asyncio.sleep(LOOKS_S)
        told = list(got)
        loop.remove_signal_handler(signal.SIGCHLD)
        begin()
        own = await asyncio.create_subprocess_exec("/bin/sh", "-c", "sleep 0.6; exit 3")
        return told, await own.wait()

    return asyncio.run(main())


def waiting_for_the_signal() -> object:
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
    begin()
    return signal.sigtimedwait([signal.SIGCHLD], LOOKS_S)


def signal_descriptor() -> object:
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
    mask = (ctypes.c_ulong * 16)(1 << (signal.SIGCHLD - 1))
    descriptor = ctypes.CDLL(None).signalfd(-1, mask, 0)
    begin()
    return select.select([descriptor], [], [], LOOKS_S)[0]


def own_children() -> object:
    """Those of the program end as they do."""
    context = multiprocessing.get_context("fork")
    begin()
    process = context.Process(target=time.sleep, args=(0.6,))
    process.start()
    codes = [subprocess.run(["/bin/sh", "-c", f"exit {n}"]).returncode for n in range(3)]
    process.join()
    return codes, process.exitcode, said(os.wait)


def state() -> object:
    """Mask, dispositions and descriptors of this process, before and after."""

    def now() -> Any:
        with open("/proc/self/status") as file:
            signals = [line for line in file if line.startswith("Sig")][1:]
        return signals, sorted(os.listdir("/proc/self/fd")), os.getcwd(), os.umask(0o22)

    before = now()
    begin()
    return now() == before


WAYS = (
    waitpid, waitid, wait_blocked, handler, handler_in_c, in_asyncio, waiting_for_the_signal,
    signal_descriptor, own_children, state,
)  # fmt: skip


def main() -> None:
    """All at once, each in a process of its own."""
    pipes = []
    for way in WAYS:
        reads, writes = os.pipe()
        if os.fork() == 0:
            try:
                os.write(writes, f"{way.__name__}: {way()}\n".encode())
            except BaseException as error:
                os.write(writes, f"{way.__name__}: {error!r}\n".encode())
            os._exit(0)
        os.close(writes)
        pipes.append(reads)
    for reads in pipes:
        with open(reads) as pipe:
            sys.stdout.write(pipe.read())


if __name__ == "__main__":
    main()
