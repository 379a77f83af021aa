"""Limits: with little left of something, a traced program has as much of it as it needs."""

from __future__ import annotations

import os
import resource
import signal
import tempfile
from typing import Any

from reliability.attacks.ground import LIBC, MUCH, child, group, reduce, say, stall


def file_size_with_its_signal() -> None:
    """A limit of file sizes whose signal has its default: who writes no file is not ended by it."""
    say(limited=4096)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    dist = group()
    reduce(dist, 2000)
    stall(2)
    os._exit(0)


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
