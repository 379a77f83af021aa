"""Children: what a program started is all that it can find, and all that it hears of."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time

from reliability.attacks.ground import LIBC, STALL_S, command, forked, group, say, stall

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


def killed_group() -> None:
    """Who asks for the processes of its group and session finds its own; killpg ends it alone."""
    if os.getpgrp() != os.getpid():
        os.setsid()
    group()
    stall(3)
    found = []
    for name in filter(str.isdecimal, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/stat") as file:
                fields = file.read().rpartition(")")[2].split()
        except OSError:
            continue
        found.append((int(fields[2]) == os.getpgrp(), int(fields[3]) == os.getsid(0)))
    say(members=sum(one for one, _ in found), of_session=sum(one for _, one in found))
    os.killpg(0, signal.SIGTERM)


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


def subreaper_with_grandchildren() -> None:
    """A program that adopts orphans gets its own ones, and then has no child."""
    LIBC.prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER
    group()
    if os.fork() == 0:
        if os.fork() == 0:
            time.sleep(3 * STALL_S)
            os._exit(7)
        os._exit(3)
    say(codes=_codes())


def _codes() -> list[int]:
    """Those of all children, until there is none."""
    found: list[int] = []
    with contextlib.suppress(ChildProcessError):
        while True:
            found.append(os.waitstatus_to_exitcode(os.wait()[1]))
    return found


def _first_process() -> None:
    group()
    if os.fork() == 0:
        stall(3)
        os._exit(5)
    say(pid=os.getpid(), codes=_codes())
    stall(2)
    try:
        os.waitpid(-1, os.WNOHANG)
    except ChildProcessError as error:
        say(error=error)


def first_of_a_container() -> None:
    """PID 1 waits for all its children, and later has none."""
    import subprocess

    unshare = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
    done = subprocess.run(
        unshare + command("children._first_process"), check=False, timeout=60, text=True
    )
    say(code=done.returncode)
