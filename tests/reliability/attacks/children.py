"""Children: what a program started is all that it can find, and all that it hears of."""

from __future__ import annotations

import os
import signal
import sys
import time

from reliability.attacks.ground import LIBC, forked, group, say, stall

_NEWPID = 0x20000000


def ignored_sigchld() -> None:
    """With SIGCHLD ignored children vanish by themselves, before a stall and after it."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    group()
    forked(1)
    stall(3)
    forked(2)
    time.sleep(0.3)
    try:
        os.wait()
    except ChildProcessError as error:
        say(error=error)


def new_pid_namespace() -> None:
    """After unshare(CLONE_NEWPID) the program's next child is the first of the new namespace."""
    group()
    say(failed=LIBC.unshare(_NEWPID))  # of this thread
    stall(3)
    for _ in range(2):
        reader, writer = os.pipe()
        try:
            pid = os.fork()
        except OSError as error:
            say(fork=error.strerror)
            return
        if pid == 0:
            os.write(writer, b"%d" % os.getpid())
            if os.getpid() == 1:
                time.sleep(0.5)
            os._exit(0)
        say(pid=os.read(reader, 10))
    os.wait()
    os.wait()


def asyncio_children() -> None:
    """asyncio's subprocesses end with their codes while the main task stands."""
    import asyncio

    async def main() -> None:
        ends = [
            await asyncio.create_subprocess_exec(
                sys.executable, "-S", "-c", f"raise SystemExit({n})"
            )
            for n in range(4)
        ]
        await asyncio.to_thread(stall, 3)
        say(codes=[await one.wait() for one in ends])

    group()
    asyncio.run(main())
