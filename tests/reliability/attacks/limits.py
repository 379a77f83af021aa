"""Limits: with little left of something, a traced program has as much of it as it needs."""

from __future__ import annotations

import os
import tempfile
from typing import Any

from reliability.attacks.ground import LIBC, MUCH, child, reduce, say, stall


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
