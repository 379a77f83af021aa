"""Descriptors, files and streams: what the program opened is what it has, under any number."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from reliability.attacks.ground import MUCH, command, descriptors, group, reduce, say, stall

_LOUD = {k: v for k, v in os.environ.items() if k not in ("DISTTRACE_PARENT", "DISTTRACE_QUIET")}


def standard_streams_closed() -> None:
    """What closes 0, 1 and 2 finds nothing there later: a print goes nowhere."""
    say(closed=True)
    for fd in (0, 1, 2):
        os.close(fd)
    dist = group()
    reduce(dist, MUCH)
    stall(3)
    for fd in (0, 1, 2):
        try:
            os.write(fd, b"written by the program\n")
        except OSError:
            continue
        os._exit(3)  # something stands there that the program did not open
    os._exit(4)


def _errors_closed_by_shell(dist: Any) -> None:
    reduce(dist, 1000)
    stall(3)
    say(names=sorted({Path(descriptors().get(fd, "closed")).name[:4] for fd in (0, 1, 2)}))


def started_without_streams() -> None:
    """A program started with some of 0, 1 and 2 closed."""
    line = " ".join(command("files._errors_closed_by_shell"))
    for closed in ("<&-", "2>&-", "<&- 2>&-"):
        done = subprocess.run(
            ["/bin/sh", "-c", f"exec {line} {closed}"], capture_output=True, text=True, timeout=60
        )
        say(closed=closed, code=done.returncode, out=done.stdout.strip())


def every_descriptor_replaced() -> None:
    """A daemon puts files of its own in the place of every descriptor: they hold what it wrote."""
    dist = group(backend="fake")  # gloo aborts without its own
    reduce(dist, 100)
    folder = Path(tempfile.mkdtemp())
    os.closerange(3, 1024)
    mine = [os.open(folder / str(n), os.O_CREAT | os.O_RDWR) for n in range(40)]
    for fd in mine:
        os.write(fd, b"mine")
    for number in range(400, 440):  # a tracer may keep its own out of the way
        os.dup2(mine[number % len(mine)], number)
    dist.HashStore().set("a", "b")
    os.kill(os.getpid(), 0)
    stall(3)
    say(right=all((folder / str(n)).read_bytes() == b"mine" for n in range(40)))
    for fd in mine:
        os.close(fd)


def constant_over_groups() -> None:
    """Fifty groups that come and go leave as many descriptors and threads as one does."""
    import threading

    import torch.distributed as dist

    counts = []
    for _ in range(50):
        group()
        dist.destroy_process_group()
        counts.append((len(descriptors()), threading.active_count()))
    say(grown=[now - then for now, then in zip(counts[-1], counts[5], strict=True)])


def _says_nothing(dist: Any) -> None:
    stall(2.5)
    reduce(dist)


def errors_into_a_full_pipe() -> None:
    """A program that prints nothing ends, though nobody reads its stderr, and the pipe is full."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    try:
        while True:
            os.write(writer, b"x" * 4096)
    except BlockingIOError:
        os.set_blocking(writer, True)
    process = subprocess.Popen(command("files._says_nothing"), stderr=writer, env=_LOUD)
    os.close(writer)
    try:
        say(code=process.wait(45))
    except subprocess.TimeoutExpired:
        process.kill()
        say(code="it hangs")
    os.close(reader)


def background_of_a_terminal() -> None:
    """In the background of a terminal that stops who writes (tostop), a silent program runs on."""
    import termios

    pid, terminal = pty.fork()
    if pid == 0:
        attributes = termios.tcgetattr(0)
        attributes[3] |= termios.TOSTOP
        termios.tcsetattr(0, termios.TCSANOW, attributes)
        process = subprocess.Popen(command("files._says_nothing"), env=_LOUD, preexec_fn=os.setpgrp)
        until = time.monotonic() + 40
        state = ""
        while process.poll() is None and time.monotonic() < until:
            with open(f"/proc/{process.pid}/stat") as file:
                state = file.read().rpartition(")")[2].split()[0]
            if state == "T":
                process.kill()
                os._exit(9)
            time.sleep(0.1)
        os._exit(process.returncode or 0)
    try:
        while os.read(terminal, 4096):
            continue
    except OSError:
        pass  # the terminal's other end has gone
    say(code=os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))


def odd_objects_as_stderr() -> None:
    """sys.stderr as None, closed, or something that raises; and sys.__stderr__ too."""
    import io

    class Raises(io.StringIO):
        def write(self, _: str) -> int:
            raise RuntimeError("nobody writes here")

    dist = group()
    for stream in (None, io.StringIO(), Raises()):
        sys.stderr = stream
        setattr(sys, "__stderr__", stream)  # noqa: B010 - it is final to type checkers
        stall(1.2)
        reduce(dist)
    kept = io.StringIO()
    sys.stderr = kept
    stall(2)
    say(said=[line for line in kept.getvalue().splitlines() if "disttrace" not in line])


def folder_that_moves() -> None:
    """The working directory goes, and another one is entered, while a relative folder is used."""
    first, second = tempfile.mkdtemp(), tempfile.mkdtemp()
    os.chdir(first)
    dist = group()
    os.rmdir(first) if not os.listdir(first) else os.rename(first, first + "-away")
    reduce(dist, 1000)
    os.chdir(second)
    stall(2)
    reduce(dist, 1000)
    say(left=[name for name in os.listdir(second) if "disttrace" not in name])


def umask_and_modes() -> None:
    """Files that the program makes have the mode of its umask, at any moment of ours."""
    os.umask(0o027)
    dist = group()
    modes = set()
    folder = Path(tempfile.mkdtemp())
    for n in range(300):
        reduce(dist, 20)
        path = folder / str(n)
        path.touch()
        modes.add(oct(path.stat().st_mode & 0o777))
    say(modes=sorted(modes), mask=oct(os.umask(0o027)))
