"""A journal that is being written: whole lines of a file as they come, and its definitions."""

from __future__ import annotations

import os
import re

import disttrace.journal.format as fmt
from disttrace_viewer.load.definitions import Definitions
from disttrace_viewer.load.files import open_regular
from disttrace_viewer.load.schema import json_object
from disttrace_viewer.load.text import LONGEST_LINE

CHUNK = 1 << 20


class Tail:
    """Reads one file from where it stopped; keeps it open, so that deleting it loses nothing.

    A tail of NULs is space not used yet. A line with a NUL is waited for, and skipped if ``final``.
    """

    def __init__(self, path: str, owner: int | None = None) -> None:
        """Raises OSError if the file is not there, a link, no regular file, or not ``owner``'s."""
        if owner is None:
            self._fd = open_regular(path, follow=False)
        else:
            self._fd = fmt.open_own(path, os.O_RDONLY, owner)
        self._position = 0

    def lines(self, *, final: bool = False, most: int = CHUNK) -> list[bytes]:
        """New lines without their newline, up to about ``most`` bytes; empty: none for now."""
        data = self._read(most)
        hole = -1 if final else data.find(b"\0")
        usable = data if hole < 0 else data[:hole]
        end = usable.rfind(b"\n") + 1
        self._position += end
        return [line for line in usable[:end].splitlines() if b"\0" not in line]

    def recent(self, most: int) -> list[bytes]:
        """New lines; of more than ``most`` bytes the last, of which the first line may be torn."""
        data = os.pread(self._fd, most, self._position)
        if len(data) == most and data[-1]:
            self._position = max(self._position, written(self._fd, self._position) - most)
        return self.lines(most=most)

    def skip(self) -> None:
        """Go on behind the last whole line that is there now."""
        end = written(self._fd)
        start = max(0, end - CHUNK)
        self._position = start + os.pread(self._fd, end - start, start).rfind(b"\n") + 1

    @property
    def at_end(self) -> bool:
        """Whether nothing is written behind what was read."""
        return not os.pread(self._fd, 1, self._position).strip(b"\0")

    @property
    def deleted(self) -> bool:
        return os.fstat(self._fd).st_nlink == 0

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _read(self, size: int) -> bytes:
        while True:
            data = os.pread(self._fd, size, self._position)
            if len(data) < size or b"\n" in data or data[:1] == b"\0":
                return data
            if size > LONGEST_LINE:
                self._position += len(data)  # no line of ours; what is left of it is none either
            else:
                size *= 4  # one line longer than the chunk


class GrowingDefinitions(Definitions):
    """Those of the journal ``path``; ``owner`` as of ``Tail``. Nothing here raises."""

    def __init__(self, path: str, owner: int | None = None) -> None:
        super().__init__(fmt.definitions_name(path))
        self._owner = owner
        self._tail: Tail | None = None

    def read(self, *, final: bool = False) -> None:
        """Take what was defined since; ``final``: the process is gone."""
        if self._tail is None:
            try:
                self._tail = Tail(self.path, self._owner)
            except OSError:
                return  # nothing is there yet
        while lines := self._tail.lines(final=final):
            for line in lines:
                if (record := json_object(line)) is not None:
                    self.add(record)

    def close(self) -> None:
        if self._tail is not None:
            self._tail.close()


def segments_of(path: str) -> list[int]:
    """Numbers of the segments of the journal ``path``. Raises OSError."""
    folder, name = os.path.split(path)
    ours = (one.removeprefix(f"{name}.") for one in os.listdir(folder) if one.startswith(name))
    return [int(one.removesuffix(fmt.OPS_SUFFIX)) for one in ours if _SEGMENT.fullmatch(one)]


def newest_segment(path: str) -> int:
    """Number of a journal's newest segment, 1 where there is none. Raises OSError."""
    number = 1
    if not os.path.exists(fmt.segment_name(path, number)):
        number = max(segments_of(path), default=number)
    while os.path.exists(fmt.segment_name(path, number + 1)):
        number += 1
    return number


_SEGMENT = re.compile(rf"\d{{1,18}}{re.escape(fmt.OPS_SUFFIX)}")


def written(fd: int, start: int = 0) -> int:
    """Bytes written into a segment, from ``start`` on; one that is mapped ends in zeros."""
    low, high = start, os.fstat(fd).st_size
    while low < high:
        middle = (low + high) // 2
        if os.pread(fd, 1, middle) not in (b"", b"\0"):
            low = middle + 1
        else:
            high = middle
    return low
