"""Limits: with little left of something, a traced program has as much of it as it needs."""

from __future__ import annotations

import os
import resource
import signal
import sys
import tempfile
import threading
from typing import Any

from reliability.attacks.ground import LIBC, MUCH, child, group, reduce, say, stall


def _file_size() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    dist = group()
    reduce(dist, 2000)
    stall(2)
    os._exit(0)


def file_size_with_its_signal() -> None:
    """A limit of file sizes whose signal has its default: who writes no file is not ended by it."""
    say(code=child("limits._file_size").returncode)


def locked_memory(dist: Any) -> None:
    """mlockall of all that comes, with 8 MB of it: collectives go on."""
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (8 << 20, 8 << 20))
    os.setresuid(65534, 65534, 0)
    failed = LIBC.mlockall(2)  # MCL_FUTURE
    say(failed=failed, reduced=reduce(dist, MUCH) > 0)
    stall(2)
    LIBC.munlockall()


def few_descriptors(dist: Any) -> None:
    """With no descriptor left, operations go on and the program's own error is the program's."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    mine = []
    try:
        while True:
            mine.append(os.open("/dev/null", os.O_RDONLY))
    except OSError as error:
        say(error=error.strerror)
    say(reduced=reduce(dist, MUCH) > 0)
    stall(3)
    for fd in mine:
        os.close(fd)
    say(reduced=reduce(dist) > 0)


def no_more_processes(dist: Any) -> None:
    """No process and no thread may be started: a stall passes and collectives go on."""
    os.setresuid(65534, 65534, 0)
    resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
    stall(3)
    try:
        os.fork()
    except BlockingIOError as error:
        say(error=error.strerror)
    say(reduced=reduce(dist) > 0)


def small_stacks(dist: Any) -> None:
    """Threads with 128 kB of stack issue collectives and store operations."""
    store = dist.HashStore()
    threading.stack_size(128 << 10)
    done = []

    def work(n: int) -> None:
        for m in range(50):
            store.set(f"{n}/{m}", "x" * 300)
            store.get(f"{n}/{m}")
        done.append(reduce(dist))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    say(done=len(done))


def deep_recursion(dist: Any) -> None:
    """At each depth at which the bare call works, the traced one does."""
    store = dist.HashStore()
    sys.setrecursionlimit(400)

    def down() -> int:
        try:
            return down() + 1
        except RecursionError:
            return 0

    free = down()

    def at(depth: int) -> bool:
        if depth > 0:
            return at(depth - 1)
        try:
            store.set("a", "b")
            reduce(dist)
        except RecursionError:
            return False
        return True

    say(works=[left for left in (60, 40, 30, 25) if at(free - left)])


def no_space_left() -> None:
    """A folder of journals without room: results stay."""
    _with_little(b"size=256k")


def _with_little(options: bytes) -> None:
    folder = tempfile.mkdtemp()
    if LIBC.mount(b"none", folder.encode(), b"tmpfs", 0, options):
        say(mount="refused")
        return
    os.environ["DISTTRACE_DIR"] = folder
    say(code=child("limits._writes_much").returncode)
    LIBC.umount2(folder.encode(), 2)


def _writes_much(dist: Any) -> None:
    reduce(dist, MUCH)
    stall(2)


def no_inodes_left() -> None:
    """A folder in which no further file can be made."""
    _with_little(b"nr_inodes=3")


def odd_folders() -> None:
    """DISTTRACE_DIR as a file, a device, a pipe, a loop of links, nothing, too long, no text."""
    base = tempfile.mkdtemp()
    with open(f"{base}/file", "w"):
        pass
    os.mkfifo(f"{base}/fifo")
    os.symlink(f"{base}/loop", f"{base}/loop")
    odd = ("/dev/null", "/dev/full", "/proc/self/x", f"{base}/file", f"{base}/fifo",
           f"{base}/loop", "", " ", "/" + 5000 * "x", f"{base}/a\nb\x1b[31m",
           f"{base}/\udcff")  # fmt: skip
    for folder in odd:
        environ = {**os.environ, "DISTTRACE_DIR": folder}
        say(code=child("limits._short", env=environ, stderr=-3).returncode)


def _short() -> None:
    reduce(group(), 10)


def unreadable_process(dist: Any) -> None:
    """Without the right to read its own /proc (PR_SET_DUMPABLE off, another user)."""
    os.setresuid(65534, 65534, 65534)
    LIBC.prctl(4, 0, 0, 0, 0)
    stall(3)
    say(reduced=reduce(dist) > 0)


def one_processor() -> None:
    """Bound to one processor and of the lowest priority: the mask and the priority stay."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    os.nice(19)
    dist = group()
    stall(3)
    say(mask=len(os.sched_getaffinity(0)), nice=os.nice(0), reduced=reduce(dist))
