"""A file of ours, in a process whose program may close or replace any descriptor it likes.

Daemons close everything above the second descriptor, and what they open next has our numbers. What
is written, cut or closed here is looked at first: it must still be the file that was made. On a
network file system a write can block for as long as a server pleases: the one that blocks cannot be
cut short, but it can be the last.
"""

from __future__ import annotations

import errno
import os
import resource
import sys
import time

from disttrace.foreign import is_ours, ours
from disttrace.journal.descriptors import aside, still
from disttrace.journal.originals import write

_clock = time.perf_counter_ns

_SLOW = 1_000_000
"""Nanoseconds from which a write is held against the file system: below, it was none's fault."""

_WINDOWS = 10
"""All slow writes are added up over so many times the bound of one."""


class SlowWrites(OSError):  # noqa: N818 - what it is about, in one sentence of ours
    """Writes take too long; the text holds how long they took. What they wrote is written."""


class WriteBudget:
    """Adds up the time of one journal's writes. ``bound`` in seconds: for a single write; slow
    ones together may take five times that within ten times that; 0: none. A sum that misses one
    of two threads grows later."""

    def __init__(self, bound: float) -> None:
        self._one = int(bound * 1e9)
        self._window = self._one * _WINDOWS
        self._since = _clock()
        self._sum = 0

    def wrote(self, begun: int) -> None:
        """A write that began at ``begun`` (``perf_counter_ns``) is over. Raises SlowWrites."""
        now = _clock()
        took = now - begun
        if took < _SLOW or not self._one:
            return
        if took > self._one:
            raise SlowWrites(f"one write took {took / 1e9:.1f} s")
        if begun - self._since > self._window:
            self._since, self._sum = begun, 0
        self._sum += took
        if self._sum > self._window // 2:
            lasted = (now - self._since) / 1e9
            raise SlowWrites(f"writes took {self._sum / 1e9:.1f} of {lasted:.1f} s")


PRIVATE = 0o600
"""Permissions of files unless DISTTRACE_FILE_MODE sets others: only the owner reads them."""

_lseek, _getpid = os.lseek, os.getpid


class OfParent(OSError):  # noqa: N818 - what it is, in one word
    """This process was forked without Python's hooks: its files are its parent's."""


class OwnFile:
    """A new file, opened again where the program took its descriptor. Raises OSError."""

    def __init__(self, path: str, flags: int, mode: int) -> None:
        self.times_opened = 1
        self._end = 0  # where the descriptor stands: after all that was written
        self._path, self._flags = path, flags
        self._fd = _create(path, flags, mode)
        self._process = _getpid()
        self._file = os.fstat(self._fd)

    def is_ours(self) -> bool:
        return still(self._fd, self._file) is not None

    def checked(self) -> int:
        """The descriptor. Raises OSError where it is not ours and the file cannot be had again."""
        if _getpid() != self._process:
            raise OfParent(errno.EBADF, os.strerror(errno.EBADF))
        if not self.is_ours():
            self._fd = -1
            flags = self._flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            fd = aside(os.open(self._path, flags))
            if still(fd, self._file) is None:
                os.close(fd)
                raise OSError(errno.EBADF, "the program closed it, and another has its name")
            self._fd = fd
            self.times_opened += 1
        return self._fd

    def write(self, data: bytes, budget: WriteBudget | None) -> None:
        """Append as a whole, and let ``budget`` know how long it took. Raises OSError.

        Where the descriptor stands tells at a third of the price of a look at its file that it is
        ours still: a file that the program opened does not stand just there (but at the beginning,
        where every one stands, we look), a socket nowhere.
        """
        if _getpid() != self._process:
            self.checked()
        fd = self._fd
        try:
            stands = _lseek(fd, 0, os.SEEK_CUR)
        except ours(OSError):
            stands = -1
        if stands != self._end or not stands:
            fd = self.checked()
            self._end = _lseek(fd, 0, os.SEEK_CUR)
        begun = _clock()
        done = write(fd, data)
        while done < len(data):
            done += write(fd, data[done:])
        self._end += len(data)
        if budget is not None:
            budget.wrote(begun)

    def size(self) -> int | None:
        """In bytes; None: it has no name any more. Raises OSError."""
        status = os.fstat(self.checked())
        return status.st_size if status.st_nlink else None

    def close(self) -> None:
        """Let go of it; nothing where it is not ours any more. Raises OSError."""
        if self.is_ours():
            fd, self._fd = self._fd, -1
            os.close(fd)


def _create(path: str, flags: int, mode: int) -> int:
    """A new file with exactly these permissions; follows no link (O_EXCL). Raises OSError."""
    fd = aside(os.open(path, flags | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode))
    try:
        os.fchmod(fd, mode)
    except OSError as error:  # a file system without permissions
        if not is_ours(error):
            os.close(fd)
            raise
    return fd


def allow(size: int) -> int:
    """The largest file that is allowed; OSError if ``size`` is larger, for SIGXFSZ may kill."""
    limit, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    if limit == resource.RLIM_INFINITY:
        return sys.maxsize
    if size > limit:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
    return limit
