"""What the kernel can be asked for: namespaces, filters, leases, watches, tables of descriptors."""

from __future__ import annotations

import ctypes
import fcntl
import os
import select
import signal
import struct
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from reliability.attacks.ground import (
    LIBC,
    MUCH,
    child,
    command,
    group,
    ran,
    reduce,
    say,
    stall,
)

_NEWNS, _FILES = 0x20000, 0x400


def _refuse(*calls: int) -> int:
    """Have this thread, and what it starts, get EPERM from these system calls."""
    allow, refuse = 0x7FFF0000, 0x00050001
    steps = [(0x20, 0, 0, 0)]  # the call's number
    for n, call in enumerate(calls):
        steps.append((0x15, len(calls) - n, 0, call))
    steps += [(0x06, 0, 0, allow), (0x06, 0, 0, refuse)]
    code = b"".join(struct.pack("HBBI", *step) for step in steps)
    kept = ctypes.create_string_buffer(code)
    program = struct.pack("HxxxxxxP", len(steps), ctypes.addressof(kept))
    LIBC.prctl(38, 1, 0, 0, 0)  # PR_SET_NO_NEW_PRIVS
    return int(LIBC.prctl(22, 2, program, 0, 0))  # PR_SET_SECCOMP


def filtered_files(dist: Any) -> None:
    """A sandbox that refuses to open, map, link and remove from now on: results stay."""
    refused = _refuse(257, 2, 437, 9, 87, 263, 285, 77)
    reduced = reduce(dist, MUCH) > 0
    stall(2)
    say(refused=refused, reduced=reduced)


def filtered_processes(dist: Any) -> None:
    """One that refuses processes, signals and sockets: a stall passes."""
    refused = _refuse(56, 57, 58, 62, 200, 234, 297, 41, 101, 434, 435, 424)
    stall(3)
    say(refused=refused)
    try:
        os.kill(os.getpid(), 0)
    except PermissionError as error:
        say(error=error.strerror, reduced=reduce(dist) > 0)


def mounts_of_its_own(dist: Any) -> None:
    """A mount namespace in which everything below /tmp is covered by an empty disk."""
    failed = LIBC.unshare(_NEWNS)
    LIBC.mount(b"none", b"/", None, 0x44000, None)  # private, all below
    failed += LIBC.mount(b"none", b"/tmp", b"tmpfs", 0, b"size=1m")
    reduce(dist, MUCH)
    stall(3)
    say(failed=failed, found=os.listdir("/tmp"))


def no_proc_at_all() -> None:
    """A container without /proc."""
    line = " ".join(command("kernel._plain"))
    script = f"mount -t tmpfs none /proc && exec {line}"
    ran(["unshare", "-m", "sh", "-c", script])


def _plain(dist: Any) -> None:
    stall(2)
    say(reduced=reduce(dist, 100) > 0)


def descriptors_of_a_thread() -> None:
    """close_range(CLOSE_RANGE_UNSHARE): the main thread has a table of its own from then on."""
    mine = [tempfile.TemporaryFile() for _ in range(20)]  # noqa: SIM115
    dist = group()
    held = [os.dup(one.fileno()) for one in mine]
    failed = LIBC.unshare(_FILES)
    for fd in held:
        os.close(fd)
    reduce(dist, MUCH)
    stall(2)
    reduce(dist, MUCH)
    say(failed=failed, sizes={os.fstat(one.fileno()).st_size for one in mine})


def leases_on_files() -> None:
    """Nobody opens what the program holds leases on, its script and its settings among them."""
    names = ["data.bin", "pyproject.toml", "log.txt"]
    for name in names:
        Path(name).write_text("")
    files = [os.open(name, os.O_RDWR) for name in names]
    came: list[int] = []
    signal.signal(signal.SIGIO, lambda number, _: came.append(number))
    got = []
    for fd in files:
        try:
            fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
            got.append(True)
        except OSError:
            got.append(False)
    dist = group()
    stall(3)
    say(got=got, came=came, reduced=reduce(dist) > 0)


def watched_folder() -> None:
    """inotify on the working directory and on the standard streams' files tells of nothing."""
    os.makedirs("inner")
    dist = group()
    fd = LIBC.inotify_init1(os.O_NONBLOCK)
    LIBC.inotify_add_watch(fd, b".", 0xFFF)
    LIBC.inotify_add_watch(fd, b"inner", 0xFFF)
    reduce(dist, 2000)
    stall(3)
    poller = select.poll()
    poller.register(fd, select.POLLIN)
    say(events=len(poller.poll(0)))


def locked_errors() -> None:
    """POSIX locks on the file that is stderr stay with the program through a stall."""
    with open("log.txt", "wb") as log:
        done = subprocess.run(command("kernel._locks"), stderr=log, stdout=-1, check=False)
    say(code=done.returncode, out=done.stdout)


def _locks() -> None:
    group()
    fcntl.lockf(2, fcntl.LOCK_EX)
    stall(3)
    if os.fork() == 0:
        try:
            fcntl.lockf(2, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os._exit(0)
        os._exit(1)
    say(free=os.waitstatus_to_exitcode(os.wait()[1]))


def disk_that_turns_read_only() -> None:
    """As after an error of the disk: the folder is remounted read-only while it is written."""
    folder = tempfile.mkdtemp().encode()
    if LIBC.mount(b"none", folder, b"tmpfs", 0, b"size=64m"):
        say(mount="refused")
        return
    os.environ["DISTTRACE_DIR"] = os.fsdecode(folder)
    process = subprocess.Popen(command("kernel._long"), stdout=-1, text=True)
    time.sleep(6)
    LIBC.mount(b"none", folder, b"tmpfs", 0x20 | 0x1, b"")
    say(out=process.communicate(timeout=90)[0], code=process.returncode)
    LIBC.umount2(folder, 2)


def _long(dist: Any) -> None:
    until = time.monotonic() + 10
    while time.monotonic() < until:
        reduced = reduce(dist, 500)
    say(reduced=reduced > 0)


def folder_gone_at_start() -> None:
    """Started in a folder that was removed, with journals to be written relative to it."""
    kept = {k: v for k, v in os.environ.items() if k not in ("DISTTRACE_DIR", "DISTTRACE_PARENT")}
    gone = tempfile.mkdtemp()
    os.chdir(gone)
    os.rmdir(gone)
    done = child("kernel._plain", env=kept, stdout=-1, stderr=-3)
    say(code=done.returncode, out=done.stdout)
