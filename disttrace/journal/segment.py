"""One segment file: lines of bytes that are with the kernel when ``put`` returns.

Two mechanisms with one face. A *mapped* segment stores into a shared mapping whose blocks were
reserved: a third of the price of a system call per line. A store where blocks are missing is
SIGBUS, so it is used only on file systems known to honour ``posix_fallocate``. Everywhere else
(network and FUSE file systems, btrfs, unknown ones) a segment is *written*, one system call per
line.

Anybody may shorten a file while it is mapped (``: > file``, an editor, a copy on write that finds
the disk full), and the next store would be SIGBUS too. So a mapping is *guarded*, by a handler in C
(``_mapping.c``): the store goes to memory of our own, and the window is *lost*. Where nothing was
compiled, or the handler cannot be ours, there are no mappings.
"""

from __future__ import annotations

import functools
import mmap
import os
from collections.abc import Callable
from typing import Any, TypeAlias

from disttrace import foreign
from disttrace.foreign import ours
from disttrace.journal import compiled
from disttrace.journal.descriptors import StreamsKeptFree, attempt
from disttrace.journal.originals import RLock, patient
from disttrace.journal.own_file import PRIVATE, OwnFile, WriteBudget, allow


class Guard:
    """Guards a mapping until it is released or dropped. Raises OSError where it cannot be done."""

    def __init__(self, mapping: mmap.mmap | memoryview) -> None:
        self._held: object = _guards().guard(mapping)

    def is_lost(self) -> bool:
        """Whether a line was put where the file had ended."""
        return bool(_guards().lost(self._held))

    def release(self) -> None:
        _guards().release(self._held)


def shared(fd: int, size: int) -> memoryview:
    """The beginning of a file, mapped until this process ends. Raises OSError."""
    found: memoryview = _guards().share(fd, size)
    return found


@functools.cache
def _guards() -> Any:
    try:
        _windows()
        return compiled.load("journal._mapping")
    except ours(ImportError):
        return None


@functools.cache
def _windows() -> Any:
    """The class of windows over a mapping. ``put`` claims its place and copies the line in one call
    of C, so threads and signal handlers cannot come between, and no lock is needed; it raises
    ValueError where the line does not fit."""
    return compiled.load("recording._fast").Window


def uncompiled() -> str | None:
    """Why there is no guard at all; None: there is."""
    return None if _guards() else "the guard for truncated files was not compiled"


def guarded() -> str | None:
    """Make the handler ours, also where another was set over it. Why it cannot be, or None."""
    if (reason := uncompiled()) is not None:
        return reason
    return None if _guards().ready() else "the program ignores, blocks or handles SIGBUS"


# Local file systems on which reserved blocks stay reserved. btrfs and zfs copy on write, network
# file systems may lose the server: there a store into a mapping can still end in SIGBUS.
MAPPABLE = frozenset({"ext2", "ext3", "ext4", "xfs", "tmpfs", "f2fs", "overlay"})

MAPPED = "mapped"

_PAGE = mmap.ALLOCATIONGRANULARITY
_FIRST_WINDOW = 64 * 1024  # most processes write little: the first reservations are small
_LARGEST_WINDOW = 256 * 1024
_PATIENCE = 1.0  # seconds that the end of a segment waits for a thread that writes into it

_SHORTENED = "it was shortened or deleted from outside"

_LEFT: list[mmap.mmap] = []  # mappings that cannot be let go of

# Have the kernel make all pages of a window ready at once (Linux 5.14): one by one, as lines reach
# them, they cost a third of a line. Python has no name for it. A file system must find the blocks
# of each page that it has not seen yet; written in one piece before, they cost a quarter of that.
_POPULATE_WRITE = 23
_ZEROS = memoryview(bytes(_LARGEST_WINDOW))


class SegmentFull(ValueError):  # noqa: N818 - a signal to open the next one, not an error
    """The line does not fit: the segment has reached its limit."""


class SegmentLost(SegmentFull):
    """What is put there reaches no reader, and why; without a reason nothing is lost yet."""


class Unmapped(SegmentLost):
    """The kernel has no mapping for us. Nothing is lost; from here on lines are written."""


class MappedSegment:
    """A segment in a shared mapping, extended window by window, of which two may never be open at a
    time.

    ``put`` is the hot path and an attribute, not a method: it appends one line, which survives the
    process from then on, and may be called by several threads at once. It raises ValueError where
    ``extend`` must make room first (and put it anew: it is another function then), OSError where
    the disk refuses.
    """

    def __init__(self, path: str, *, limit: int, mode: int = PRIVATE) -> None:
        self._limit = limit
        self._start = 0  # offset of the window in the file
        self._sealed: int | None = None  # size of the content once no line may follow
        self._next_window = _FIRST_WINDOW
        self.file = OwnFile(path, os.O_RDWR, mode)
        try:
            self._open_window(0, 0)
        except BaseException as error:
            self.file.close()
            if foreign.is_a(error, SegmentLost) and not foreign.is_a(error, Unmapped):
                raise OSError(foreign.text_of(error)) from error
            raise

    def extend(self, need: int) -> None:
        """Make room for ``need`` bytes. Raises SegmentFull at the limit, SegmentLost, OSError."""
        size = self._seal()
        self.check()
        if size and size + need > self._limit:
            raise SegmentFull
        window, mapping, mapped_from = self._window, self._map, self._mapped_from
        guard = self._guard
        self._open_window(size, need)
        self._unmap(window, mapping, mapped_from, guard)

    def check(self) -> None:
        """Raises SegmentLost where the file was shortened or deleted, OSError."""
        if self._guard.is_lost():
            raise SegmentLost(_SHORTENED)
        _check(self.file, self._start + len(self._map))
        if guarded() is not None:
            raise SegmentLost

    def stretch(self, need: int) -> None:
        """Let the limit be where ``need`` bytes more have room."""
        self._limit = max(self._limit, self._seal() + need)

    def size(self) -> int:
        return self._start + self._window.tell() if self._sealed is None else self._sealed

    def close(self) -> None:
        """Cut the file to its size and let go of it. Raises OSError."""
        size = self._seal()
        self._unmap(self._window, self._map, self._mapped_from, self._guard)
        try:
            fd = self.file.checked()
            if os.fstat(fd).st_size > size:  # it may have been shortened
                os.ftruncate(fd, size)
        finally:
            self.file.close()

    def abandon(self) -> None:
        """Let go of the file without changing it: it belongs to the parent after a fork."""
        self._unmap(self._window, self._map, self._mapped_from, self._guard)
        self.file.close()

    def _unmap(self, window: Any, mapping: mmap.mmap, mapped_from: int, guard: Guard) -> None:
        """A mapping closes a descriptor of its own. Where the program took the file's it took that
        too, and may have given its number to something else: then the mapping stays."""
        window.close()
        guard.release()
        if self.file.is_ours() and self.file.times_opened == mapped_from:
            mapping.close()
        else:
            _LEFT.append(mapping)

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
        fd = self.file.checked()
        self._mapped_from = self.file.times_opened
        os.posix_fallocate(fd, start, length)
        fresh = -(-size // _PAGE) * _PAGE  # not the page that holds lines already
        os.pwrite(fd, _ZEROS[: start + length - fresh], fresh)
        try:
            with StreamsKeptFree():  # a mapping keeps a descriptor of its own
                mapping = mmap.mmap(fd, length, mmap.MAP_SHARED, offset=start)
        except foreign.ours(ValueError) as error:
            raise SegmentLost(_SHORTENED) from error  # just now
        except foreign.ours(OSError) as error:  # out of memory, or of mappings
            raise Unmapped from error
        self._guard = Guard(mapping)
        self._map = mapping
        attempt(self._map.madvise, _POPULATE_WRITE)  # which older kernels do not know
        self._window = _windows()(self._map, size - start)
        self._start = start
        self._sealed = None
        self._next_window = min(self._next_window * 4, _LARGEST_WINDOW)
        self.put: Callable[[bytes], object] = self._window.put


class WrittenSegment:
    """A segment written line by line, under a lock: a late thread must not write into what took the
    descriptor's number. With ``budget`` writes are timed, and ``put`` raises SlowWrites."""

    def __init__(
        self, path: str, *, limit: int, budget: WriteBudget | None = None, mode: int = PRIVATE
    ) -> None:
        self._limit = limit
        self._budget = budget
        self._size = self._written = 0  # with the line that is being written, and without it
        self._allowed = 0  # size up to which the process's own limit was looked at
        self._closed = False
        self._lock = RLock()  # a signal handler may record in the middle of a line
        self.file = OwnFile(path, os.O_WRONLY | os.O_APPEND, mode)
        self.put: Callable[[bytes], object] = self._put

    def _put(self, line: bytes) -> None:
        with self._lock if self._size == self._written else patient(self._lock):
            size = self._size + len(line)
            if self._closed or (size > self._limit and self._size):
                raise SegmentFull
            if size > self._allowed:
                self._allowed = min(allow(size), size + _FIRST_WINDOW)
            self._size = size
            self.file.write(line, self._budget)
            self._written = size

    def extend(self, need: int) -> None:
        if self._size and self._size + need > self._limit:
            raise SegmentFull

    def check(self) -> None:
        # What size a network file system tells may be that of a while ago.
        _check(self.file, 0 if self._budget else self._written)

    def stretch(self, need: int) -> None:
        self._limit = max(self._limit, self._size + need)

    def size(self) -> int:
        return self._size

    def close(self) -> None:
        self._closed = True
        if self._lock.acquire(timeout=_PATIENCE):  # else a thread hangs in a write: let it be
            try:
                self.file.close()
            finally:
                self._lock.release()

    def abandon(self) -> None:
        self._closed = True
        self.file.close()  # of the threads only this one is left


Segment: TypeAlias = MappedSegment | WrittenSegment


def _check(file: OwnFile, size: int) -> None:
    status = os.fstat(file.checked())
    if status.st_size < size or not status.st_nlink:
        raise SegmentLost(_SHORTENED)


def mechanism(path: str) -> tuple[str, str]:
    """How segments under ``path`` will be kept: ``("mapped" | "written", reason)``."""
    kind = filesystem(path)
    if kind not in MAPPABLE:
        return "written", f"{kind} may not honour reserved blocks"
    reason = uncompiled()
    return (MAPPED, f"{kind} honours reserved blocks") if reason is None else ("written", reason)


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
    except foreign.ours(OSError, IndexError):
        return "unknown"
    return kind


def write_budget(path: str, slow_write: float) -> WriteBudget | None:
    """What segments under ``path`` are opened with: nothing where they are mapped."""
    mapped = mechanism(path)[0] == MAPPED and guarded() is None
    return None if mapped else WriteBudget(slow_write)


def open_segment(
    path: str, *, limit: int, budget: WriteBudget | None = None, mode: int = PRIVATE
) -> Segment:
    """A new segment: written with a ``budget``, or where no mapping is safe; else mapped."""
    if budget is None and guarded() is None:
        try:
            return MappedSegment(path, limit=limit, mode=mode)
        except Unmapped:
            os.unlink(path)  # made just now
    return WrittenSegment(path, limit=limit, budget=budget, mode=mode)
