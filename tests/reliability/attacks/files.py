"""Descriptors, files and streams: what the program opened is what it has, under any number."""

from __future__ import annotations

import os
import pty
import subprocess
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
