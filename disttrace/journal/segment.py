"""One segment file: lines of bytes that are with the kernel when ``put`` returns.

Two mechanisms with one face. A *mapped* segment stores into a shared mapping whose blocks were
reserved: a third of the price of a system call per line. Storing into a mapping whose blocks are
missing kills the process with SIGBUS, so it is used only on file systems known to honour
``posix_fallocate``; everywhere else (network and FUSE file systems, btrfs, unknown ones) a segment
is *written*, one system call per line.
"""

from __future__ import annotations

import mmap
import os
from typing import Protocol

# Local file systems on which reserved blocks stay reserved. btrfs and zfs copy on write, network
# file systems may lose the server: there a store into a mapping can still end in SIGBUS.
MAPPABLE = frozenset({"ext2", "ext3", "ext4", "xfs", "tmpfs", "f2fs", "overlay"})

_PAGE = mmap.ALLOCATIONGRANULARITY
_FIRST_WINDOW = 64 * 1024  # most processes write little: the first reservations are small
_LARGEST_WINDOW = 1024 * 1024


class SegmentFull(Exception):  # noqa: N818 - a signal to open the next one, not an error
    """The line does not fit: the segment has reached its limit."""


class Segment(Protocol):
    """What the journal needs of a segment."""

    def put(self, line: bytes) -> None:
        """Append ``line``; it survives the process from then on. Raises SegmentFull, OSError."""

    def size(self) -> int:
        """Bytes put so far."""

    def close(self) -> None:
        """Cut the file to its size and let go of it."""

    def abandon(self) -> None:
        """Let go of the file without changing it: it belongs to the parent after a fork."""


class MappedSegment:
    """A segment in a shared mapping, extended window by window."""

    def __init__(self, path: str, *, limit: int) -> None:
        self._limit = limit
        self._start = 0  # offset of the window in the file
        self._position = 0  # next byte, in the window
        self._room = 0  # length of the window
        self._next_window = _FIRST_WINDOW
        self._map: mmap.mmap | None = None
        self._fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o644)
        try:
            self._extend(0)
        except BaseException:
            os.close(self._fd)
            raise

    def put(self, line: bytes) -> None:
        position = self._position
        end = position + len(line)
        if end > self._room:
            self._extend(len(line))
            position = self._position
            end = position + len(line)
        # No call between reading and claiming the position: a signal handler that records can only
        # run before or after both.
        self._position = end
        self._map[position:end] = line  # type: ignore[index]

    def size(self) -> int:
        return self._start + self._position

    def close(self) -> None:
        size = self.size()
        self._drop_map()
        try:
            os.ftruncate(self._fd, size)
        finally:
            os.close(self._fd)

    def abandon(self) -> None:
        self._drop_map()
        os.close(self._fd)

    def _drop_map(self) -> None:
        if self._map is not None:
            self._map.close()
            self._map = None
        self._room = 0

    def _extend(self, need: int) -> None:
        """Reserve and map the next window, which begins on the page of the next byte."""
        size = self.size()
        if size and size + need > self._limit:
            raise SegmentFull
        start = size // _PAGE * _PAGE
        length = self._next_window
        while size - start + need > length:  # a line longer than a window: rare, but it is data
            length *= 2
        os.posix_fallocate(self._fd, start, length)
        window = mmap.mmap(self._fd, length, mmap.MAP_SHARED, mmap.PROT_WRITE, offset=start)
        self._drop_map()
        self._map, self._start, self._position, self._room = window, start, size - start, length
        self._next_window = min(self._next_window * 4, _LARGEST_WINDOW)


class WrittenSegment:
    """A segment written line by line."""

    def __init__(self, path: str, *, limit: int) -> None:
        self._limit = limit
        self._size = 0
        self._fd = os.open(
            path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC, 0o644
        )

    def put(self, line: bytes) -> None:
        size = self._size + len(line)
        if size > self._limit and self._size:
            raise SegmentFull
        self._size = size
        write_all(self._fd, line)

    def size(self) -> int:
        return self._size

    def close(self) -> None:
        os.close(self._fd)

    abandon = close


def write_all(fd: int, data: bytes) -> None:
    """Write ``data`` as a whole; a disk that fills up in the middle raises OSError."""
    done = os.write(fd, data)
    while done < len(data):
        done += os.write(fd, data[done:])


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


def open_segment(path: str, *, limit: int) -> Segment:
    """A new segment at ``path``, by the mechanism its file system allows."""
    mapped = mechanism(os.path.dirname(path) or ".")[0] == "mapped"
    return MappedSegment(path, limit=limit) if mapped else WrittenSegment(path, limit=limit)
