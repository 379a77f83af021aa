"""Numbers for our descriptors that no program counts on.

The kernel gives out the lowest number that is free. A program that closed its standard streams, or
was started without them, would print into our files; one that closes a descriptor to have the next
file get its number would find another.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any, TypeVar

from disttrace import foreign

if sys.platform != "win32":  # where the viewer runs, and nothing is traced
    import fcntl

_FIRST = 400  # below the limit that most have, and above what a program has open
_STREAMS = 3

_T = TypeVar("_T")


def attempt(call: Callable[..., _T], *args: Any) -> _T | None:
    """What a call of the kernel's gives; None where it refuses."""
    try:
        return call(*args)
    except foreign.ours(OSError):
        return None


def still(fd: int, file: os.stat_result | None) -> os.stat_result | None:
    """The status of ``fd`` while it is of ``file``, else None. By hand: no frame for dynamo."""
    try:
        found = os.fstat(fd)
    except foreign.ours(OSError):
        return None
    same = file is not None and (found.st_dev, found.st_ino) == (file.st_dev, file.st_ino)
    return found if same else None


def close_own(fd: int, file: os.stat_result | None) -> None:
    """Close ``fd``, if it still is that of ``file``; what the kernel answers is lost."""
    if still(fd, file) is not None:
        attempt(os.close, fd)


def aside(fd: int) -> int:
    """The same file under a number out of the way; ``fd`` is closed. Raises OSError."""
    try:
        moved = copy_aside(fd)
    except OSError as error:
        if foreign.is_ours(error) and fd >= _STREAMS:
            return fd
        os.close(fd)
        raise
    os.close(fd)
    return moved


def copy_aside(fd: int) -> int:
    """A second number, out of the way, for ``fd``; ``os.dup`` takes the lowest. Raises OSError."""
    try:
        return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _FIRST)
    except foreign.ours(OSError):  # few descriptors are allowed here, or left
        return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _STREAMS)


class StreamsKeptFree:
    """While this lasts nothing gets the number of a closed standard stream. A class: ``contextlib``
    would stand in the traceback of a signal handler's exception."""

    def __init__(self) -> None:
        self._fillers: list[int] = []

    def __enter__(self) -> None:
        try:
            while (fd := os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)) < _STREAMS:
                self._fillers.append(fd)
            os.close(fd)
        except BaseException:
            self.__exit__()
            raise

    def __exit__(self, *error: object) -> None:
        while self._fillers:
            os.close(self._fillers.pop())
