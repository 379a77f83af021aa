"""Children: what a program started is all that it can find, and all that it hears of."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import select
import signal
import sys
import time
from typing import Any

from reliability.attacks.ground import LIBC, STALL_S, command, forked, group, reduce, say, stall

_NEWPID = 0x20000000


def usage_of_children() -> None:
    """RUSAGE_CHILDREN and times() tell of no child, where there was none."""
    group()
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    stall(3)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    say(largest=after.ru_maxrss - before.ru_maxrss, switches=after.ru_nvcsw - before.ru_nvcsw)
    say(seconds=round(os.times().children_user + os.times().children_system, 1))


def wait3_and_wait4() -> None:
    """Both return the program's own children only, and then say that there is none."""
    group()
    mine = {forked(n) for n in range(3)}
    stall(3)
    found: list[tuple[bool, int]] = []
    try:
        while True:
            pid, status, _ = os.wait3(0) if len(found) % 2 else os.wait4(-1, 0)
            found.append((pid in mine, os.waitstatus_to_exitcode(status)))
    except ChildProcessError as error:
        say(found=sorted(found), error=error)


def waitid_of_all_kinds() -> None:
    """waitid by P_ALL and P_PGID, for exits, stops and continues, with WNOWAIT, sees nothing."""
    group()
    seen = set()
    until = time.monotonic() + 3 * STALL_S
    flags = os.WEXITED | os.WSTOPPED | os.WCONTINUED | os.WNOHANG | os.WNOWAIT
    while time.monotonic() < until:
        for kind, which in ((os.P_ALL, 0), (os.P_PGID, os.getpgrp())):
            try:
                seen.add(str(os.waitid(kind, which, flags)))
            except ChildProcessError as error:
                seen.add(str(error))
        time.sleep(0.001)
    say(seen=sorted(seen))


def listed_children() -> None:
    """The kernel's list of children of every thread is empty all the time."""
    group()
    seen: set[str] = set()
    until = time.monotonic() + 3 * STALL_S
    while time.monotonic() < until:
        for task in os.listdir("/proc/self/task"):
            try:
                with open(f"/proc/self/task/{task}/children") as file:
                    seen.update(file.read().split())
            except OSError:
                continue
        time.sleep(0.01)
    say(children=len(seen))


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


def wakeup_descriptor() -> None:
    """set_wakeup_fd gets a byte for each signal of the program's and for nothing else."""
    group()
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    os.set_blocking(reader, False)
    for number in (signal.SIGCHLD, signal.SIGUSR1):
        signal.signal(number, lambda *_: None)
    signal.set_wakeup_fd(writer)
    stall(3)
    os.kill(os.getpid(), signal.SIGUSR1)
    say(bytes=os.read(reader, 100))


def signal_descriptor() -> None:
    """All signals blocked and read from a signalfd: none comes but the program's own."""
    group()
    everything = signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}
    signal.pthread_sigmask(signal.SIG_BLOCK, everything)
    mask = (ctypes.c_uint64 * 16)(*([0xFFFFFFFFFFFFFFFF] * 16))
    fd = LIBC.signalfd(-1, mask, os.O_NONBLOCK)
    poller = select.poll()
    poller.register(fd, select.POLLIN)
    came = []
    until = time.monotonic() + 3 * STALL_S
    while (left := until - time.monotonic()) > 0:
        if poller.poll(left * 1000):
            came.append(int.from_bytes(os.read(fd, 128)[:4], sys.byteorder))
    say(came=came, pending=sorted(signal.sigpending()))


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
    """killpg of the program's own group ends it, by that signal, and nothing else counts there."""
    if os.getpgrp() != os.getpid():
        os.setpgid(0, 0)
    group()
    stall(3)
    members = 0
    for name in filter(str.isdecimal, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/stat") as file:
                fields = file.read().rpartition(")")[2].split()
        except OSError:
            continue
        members += int(fields[2]) == os.getpgrp()
    say(members=members)
    os.killpg(0, signal.SIGTERM)


def last_of_its_session() -> None:
    """Who asks the kernel for the processes of its session finds its own ones."""
    os.setsid() if os.getpid() != os.getsid(0) else None
    group()
    stall(3)
    found = 0
    for name in filter(str.isdecimal, os.listdir("/proc")):
        try:
            found += os.getsid(int(name)) == os.getsid(0)
        except OSError:
            continue
    say(found=found)


def pools_and_popen(dist: Any) -> None:
    """Pools of every kind and Popen beside a stall give their results and codes."""
    import concurrent.futures
    import multiprocessing
    import subprocess

    sleeper = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(99)"])
    for method in ("fork", "spawn", "forkserver"):
        context: Any = multiprocessing.get_context(method)
        with concurrent.futures.ProcessPoolExecutor(2, mp_context=context) as pool:
            say(**{method: list(pool.map(abs, [-1, -2, -3]))})
    stall(3)
    sleeper.terminate()
    say(code=sleeper.wait(), alive=multiprocessing.active_children(), reduced=reduce(dist))


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
