"""One segment file: lines of bytes that are with the kernel when ``put`` returns.

Two mechanisms with one face. A *mapped* segment stores into a shared mapping whose blocks were
reserved: a third of the price of a system call per line. Storing into a mapping whose blocks are
missing kills the process with SIGBUS, so it is used only on file systems known to honour
``posix_fallocate``; everywhere else (network and FUSE file systems, btrfs, unknown ones) a segment
is *written*, one system call per line.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import resource
import sys
import time
from collections.abc import Callable
from typing import Protocol

from disttrace.journal.slow_writes import WriteBudget

# Local file systems on which reserved blocks stay reserved. btrfs and zfs copy on write, network
# file systems may lose the server: there a store into a mapping can still end in SIGBUS.
MAPPABLE = frozenset({"ext2", "ext3", "ext4", "xfs", "tmpfs", "f2fs", "overlay"})

PRIVATE = 0o600
"""Permissions of files unless DISTTRACE_FILE_MODE says otherwise: nobody else reads them."""

_PAGE = mmap.ALLOCATIONGRANULARITY
_FIRST_WINDOW = 64 * 1024  # most processes write little: the first reservations are small
_LARGEST_WINDOW = 256 * 1024

# Have the kernel make all pages of a window ready at once (Linux 5.14): one by one, as lines reach
# them, they cost a third of a line. Python has no name for it.
_POPULATE_WRITE = 23


class SegmentFull(ValueError):  # noqa: N818 - a signal to open the next one, not an error
    """The line does not fit: the segment has reached its limit."""


class Segment(Protocol):
    """What the journal needs of a segment.

    ``put`` is the hot path and an attribute, not a method: it appends one line, which survives the
    process from then on, and may be called by several threads at once. It raises ValueError where
    ``extend`` must make room first (and put it anew: it is another function then), OSError where
    the disk refuses.
    """

    put: Callable[[bytes], object]

    def extend(self, need: int) -> None:
        """Make room for ``need`` bytes. Raises SegmentFull at the limit, OSError."""

    def stretch(self, need: int) -> None:
        """Let the limit be where ``need`` bytes more have room."""

    def size(self) -> int:
        """Bytes put so far."""

    def close(self) -> None:
        """Cut the file to its size and let go of it. Raises OSError."""

    def abandon(self) -> None:
        """Let go of the file without changing it: it belongs to the parent after a fork."""


class Window(Protocol):
    """The part of a mapped segment that lines are put into."""

    put: Callable[[bytes], object]  # raises ValueError where the line does not fit

    def tell(self) -> int:
        """Where the next line goes, from the window's start."""

    def seal(self) -> int:
        """Let no further line in; returns where the content ends."""

    def close(self) -> None:
        """Let go of the mapping."""


class PlainWindow:
    """A window over the mapping's own ``write``: it claims its place and copies the line in one
    call of C, so threads and signal handlers cannot come between, and no lock is needed.
    """

    def __init__(self, mapping: mmap.mmap, position: int) -> None:
        self._mapping = mapping
        mapping.seek(position)
        self.put: Callable[[bytes], object] = mapping.write

    def tell(self) -> int:
        return self._mapping.tell()

    def seal(self) -> int:
        position = self._mapping.tell()
        self._mapping.seek(0, os.SEEK_END)
        # Another thread may have put a line between the two calls above. What follows the last
        # line is NUL, for the window was reserved and never used before.
        return max(position, self._mapping.rfind(b"\n", position) + 1)

    def close(self) -> None:
        """The mapping is closed by who made it."""


# Makes the window over a mapping whose next line goes to a position.
MakeWindow = Callable[[mmap.mmap, int], Window]


class MappedSegment:
    """A segment in a shared mapping, extended window by window.

    ``put`` is the window's own, of which two may never be open at a time.
    """

    def __init__(
        self,
        path: str,
        *,
        limit: int,
        mode: int = PRIVATE,
        window: MakeWindow = PlainWindow,
    ) -> None:
        self._limit = limit
        self._make_window = window
        self._start = 0  # offset of the window in the file
        self._sealed: int | None = None  # size of the content once no line may follow
        self._next_window = _FIRST_WINDOW
        self._fd = create(path, os.O_RDWR, mode)
        try:
            self._open_window(0, 0)
        except BaseException:
            os.close(self._fd)
            raise

    def extend(self, need: int) -> None:
        size = self._seal()
        if size and size + need > self._limit:
            raise SegmentFull
        window, mapping = self._window, self._map
        self._open_window(size, need)
        window.close()
        mapping.close()

    def stretch(self, need: int) -> None:
        self._limit = max(self._limit, self._seal() + need)

    def size(self) -> int:
        return self._start + self._window.tell() if self._sealed is None else self._sealed

    def close(self) -> None:
        size = self._seal()
        self._window.close()
        self._map.close()
        try:
            os.ftruncate(self._fd, size)
        finally:
            os.close(self._fd)

    def abandon(self) -> None:
        self._window.close()
        self._map.close()
        os.close(self._fd)

    def _seal(self) -> int:
        """Let no further line into the window; returns the size of the file's content."""
        if self._sealed is None:
            self._sealed = self._start + self._window.seal()
        return self._sealed

    def _open_window(self, size: int, need: int) -> None:
        """Reserve and map the next window, which begins on the page of the next byte."""
        start = size // _PAGE * _PAGE
        # At least the line: one that is longer than the limit is rare, but it is data.
        length = max(min(self._next_window, self._limit - start), size - start + need)
        allow(start + length)
        os.posix_fallocate(self._fd, start, length)
        self._map = mmap.mmap(self._fd, length, mmap.MAP_SHARED, offset=start)
        with contextlib.suppress(OSError):  # an older kernel
            self._map.madvise(_POPULATE_WRITE)
        self._window = self._make_window(self._map, size - start)
        self._start = start
        self._sealed = None
        self._next_window = min(self._next_window * 4, _LARGEST_WINDOW)
        self.put: Callable[[bytes], object] = self._window.put


class WrittenSegment:
    """A segment written line by line; the kernel keeps lines of several threads apart.

    With ``budget`` the writes are timed, and ``put`` raises SlowWrites when that is at its end.
    """

    def __init__(
        self, path: str, *, limit: int, budget: WriteBudget | None = None, mode: int = PRIVATE
    ) -> None:
        self._limit = limit
        self._budget = budget
        self._size = 0
        self._allowed = 0  # size up to which the process's own limit was looked at
        self._fd = create(path, os.O_WRONLY | os.O_APPEND, mode)
        self.put: Callable[[bytes], object] = self._put

    def _put(self, line: bytes) -> None:
        size = self._size + len(line)
        if size > self._limit and self._size:
            raise SegmentFull
        if size > self._allowed:
            self._allowed = min(allow(size), size + _FIRST_WINDOW)
        self._size = size
        write_timed(self._fd, line, self._budget)

    def extend(self, need: int) -> None:
        if self._size and self._size + need > self._limit:
            raise SegmentFull

    def stretch(self, need: int) -> None:
        self._limit = max(self._limit, self._size + need)

    def size(self) -> int:
        return self._size

    def close(self) -> None:
        os.close(self._fd)

    abandon = close


def create(path: str, flags: int, mode: int) -> int:
    """A new file of ours with exactly these permissions, whatever the umask. Raises OSError.

    O_EXCL follows no link and opens nothing that somebody else put there.
    """
    fd = os.open(path, flags | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    with contextlib.suppress(OSError):  # a file system without permissions
        os.fchmod(fd, mode)
    return fd


def allow(size: int) -> int:
    """The size up to which this process may write files; OSError where ``size`` is beyond.

    The kernel would send SIGXFSZ first, which ends a program that set it to its default.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    if limit == resource.RLIM_INFINITY:
        return sys.maxsize
    if size > limit:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
    return limit


def write_all(fd: int, data: bytes) -> None:
    """Write ``data`` as a whole; a disk that fills up in the middle raises OSError."""
    done = os.write(fd, data)
    while done < len(data):
        done += os.write(fd, data[done:])


def write_timed(fd: int, data: bytes, budget: WriteBudget | None) -> None:
    """The same, and let ``budget`` know how long it took. Raises SlowWrites too."""
    if budget is None:
        write_all(fd, data)
    else:
        begun = time.perf_counter_ns()
        write_all(fd, data)
        budget.wrote(begun)


def mechanism(path: str) -> tuple[str, str]:
    """How segments under ``path`` will be kept: ``("mapped" | "written", reason)``."""
    kind = filesystem(path)
    if kind in MAPPABLE:
        return "mapped", f"{kind} honours reserved blocks"
    return "written", f"{kind} may not honour reserved blocks"


def filesystem(path: str) -> str:
    """Type of the file system that holds ``path``, from the mount table; "unknown" without one."""
    path = os.path.realpath(path)
    best, kind = "", "unknown"
    try:
        with open("/proc/self/mounts", encoding="utf-8", errors="surrogateescape") as mounts:
            for line in mounts:
                fields = line.split(" ")
                point = fields[1].encode("latin-1", "replace").decode("unicode_escape")
                inside = path == point or path.startswith(point.rstrip("/") + "/")
                if inside and len(point) >= len(best):
                    best, kind = point, fields[2]
    except (OSError, IndexError):
        return "unknown"
    return kind


def write_budget(path: str, slow_write: float) -> WriteBudget | None:
    """What segments under ``path`` are opened with: nothing where they are mapped."""
    return None if mechanism(path)[0] == "mapped" else WriteBudget(slow_write)


def open_segment(
    path: str,
    *,
    limit: int,
    budget: WriteBudget | None = None,
    mode: int = PRIVATE,
    window: MakeWindow = PlainWindow,
) -> Segment:
    """A new segment at ``path``, written where ``budget`` is given and mapped without."""
    if budget is None:
        return MappedSegment(path, limit=limit, mode=mode, window=window)
    return WrittenSegment(path, limit=limit, budget=budget, mode=mode)
