"""The journal of this process: a definitions file and numbered segments, bounded in size.

Nothing here takes a lock or catches an error: the recorder does both.
"""

from __future__ import annotations

import collections
import functools
import os
import stat
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from disttrace import redact
from disttrace.foreign import ours
from disttrace.journal import format as fmt
from disttrace.journal.descriptors import attempt
from disttrace.journal.encoding import encode
from disttrace.journal.own_file import PRIVATE, OwnFile, allow
from disttrace.journal.segment import (
    Segment,
    SegmentFull,
    open_segment,
    write_budget,
)

# Eight segments fill the bound, so at most an eighth of the history is lost when the oldest goes.
_SEGMENTS = 8
_SMALLEST_SEGMENT = 64 * 1024


def _append(segment: Segment, line: bytes) -> None:
    try:
        segment.put(line)
    except ours(ValueError):
        segment.extend(len(line))
        segment.put(line)


def make_folder(directory: str, mode: int) -> None:
    """The folder of files with ``mode``: who may read those may also list it. Raises OSError."""
    if not os.path.isdir(directory):
        os.makedirs(directory, exist_ok=True)
        attempt(os.chmod, directory, _with_search(mode))


def make_folder_below(root: str, folder: str, mode: int) -> None:
    """``folder``, two levels below ``root``, for this user alone to change: its name can
    be foretold, and the owner of a folder can put others' files into it. Raises OSError.
    """
    make_folder(root, mode)
    owners = (os.geteuid(), os.stat(root).st_uid)
    for path in (os.path.dirname(folder), folder):
        try:
            os.mkdir(path, 0o700)
            attempt(os.chmod, path, _with_search(mode))
        except ours(FileExistsError):
            pass
        found = os.lstat(path)
        if not stat.S_ISDIR(found.st_mode) or found.st_uid not in owners:
            raise fmt.ForeignFile(f"{path} is no folder of this user's")


def _with_search(mode: int) -> int:
    """Permissions of a folder; some file systems have none."""
    return mode | (mode & 0o444) >> 2


class JournalWriter:
    """Files of one process. ``put`` is the current segment's own, rebound when that changes: the
    hot path pays for one call."""

    put: Callable[[bytes], object]

    def __init__(
        self,
        directory: str,
        base: str,
        *,
        max_bytes: int,
        slow_write: float = 0.0,
        mode: int = PRIVATE,
    ) -> None:
        """Create the folder and both files, with permissions ``mode``. Raises OSError.
        ``slow_write`` bounds writes (WriteBudget) where segments are written."""
        self._path = os.path.join(directory, base)
        self._max_bytes = max_bytes
        self.most_definitions = max_bytes // 4  # bytes from which on they should add nothing new
        self._limit = max(max_bytes // _SEGMENTS, _SMALLEST_SEGMENT)
        self._kept: collections.deque[tuple[int, int]] = collections.deque()  # number, size
        self.number = 0  # of the current segment, from 1
        self._segment: Segment | None = None
        make_folder(directory, mode)
        self._budget = write_budget(directory, slow_write)
        self._mode = mode
        self._defs = OwnFile(fmt.definitions_name(self._path), os.O_WRONLY | os.O_APPEND, mode)
        self._defined = 0  # bytes of definitions

    def define(self, record: Mapping[str, Any]) -> int:
        """Append a definition, masked, as far as the kernel; its size in bytes. Raises OSError."""
        line = encode(fmt.with_ranges(redact.current.record(record))) + b"\n"
        allow(self._defined + len(line))
        self._defs.write(line, self._budget)
        self._defined += len(line)
        return len(line)

    def append(self, line: bytes) -> None:
        """Put a line whatever room it takes. Raises OSError."""
        segment = self._segment
        assert segment is not None
        try:
            _append(segment, line)
        except SegmentFull:  # a new one is half full of copies, and this line is a long one
            segment.stretch(len(line))
            _append(segment, line)
        self.put = segment.put

    def open_segment(self, opening: Iterable[bytes], dropping: Callable[[int], object]) -> None:
        """Start the next segment with the lines ``opening``. Raises OSError; the one before stays
        then. ``dropping`` gets the number of each segment that goes for the bound, before: else a
        process that is killed leaves a hole that nothing explains."""
        self._defs.checked()  # in a copy of the process made without our hooks, no file is ours
        path = fmt.segment_name(self._path, self.number + 1)
        segment = self._made(path)
        try:
            for line in opening:
                if segment.size() + len(line) > self._limit // 2:
                    break  # thousands in flight: the newest do not fit, and stand in that before
                _append(segment, line)
        except BaseException:
            segment.abandon()
            raise
        previous, number = self._segment, self.number + 1
        # Without a call between, in which a signal handler could raise.
        self._segment, self.number, self.put = segment, number, segment.put
        if previous is not None:
            self._kept.append((self.number - 1, previous.size()))
            previous.close()
        room = self._max_bytes - self._defined - self._limit  # as if the current one were full
        while sum(size for _, size in self._kept) > room and len(self._kept) > 1:
            oldest, _ = self._kept.popleft()
            dropping(oldest)
            os.unlink(fmt.segment_name(self._path, oldest))

    def _made(self, path: str) -> Segment:
        """A new segment in the file ``path``. Raises OSError."""
        make = functools.partial(
            open_segment, path, limit=self._limit, budget=self._budget, mode=self._mode
        )
        try:
            return make()
        except ours(FileExistsError):  # a signal handler raised when we were here before
            os.unlink(path)
            return make()

    def extend(self, need: int) -> None:
        """Make room in the current segment. Raises SegmentFull, SegmentLost, OSError."""
        assert self._segment is not None
        self._segment.extend(need)
        self.put = self._segment.put

    def check(self) -> None:
        """Raises SegmentLost where what is put now reaches no reader, and another segment would be
        read; OSError where none would, for the definitions were shortened or deleted."""
        defined, size = self._defined, self._defs.size()  # a handler may define in between
        if size is None:
            raise FileNotFoundError("its journal was deleted")
        if size < defined and self._budget is None:  # others may tell an older size
            raise OSError("its definitions were shortened from outside")
        if self._segment is not None:
            self._segment.check()

    def position(self) -> tuple[int, int]:
        """(number of the segment, bytes in it): changes with every line."""
        return self.number, self._segment.size() if self._segment is not None else 0

    @property
    def definitions(self) -> int:
        """The descriptor of the definitions file. Raises OSError."""
        return self._defs.checked()

    @property
    def descriptor(self) -> int:
        """That of the current segment; -1: there is none. Raises OSError."""
        return -1 if self._segment is None else self._segment.file.checked()

    def close(self) -> None:
        """Cut the last segment to its size and close both files. Raises OSError."""
        if self._segment is not None:
            self._segment.close()
        self._defs.close()

    def abandon(self) -> None:
        """Close both files without changing them: after a fork they are the parent's."""
        if self._segment is not None:
            self._segment.abandon()
        self._defs.close()
