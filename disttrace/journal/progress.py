"""Where a journal's newest operation stands that gets anywhere: one that is none of a store.

Who polls a store begins operations all the time, and waits. What is asked here is asked now and
then, of the files, so that recording knows nothing of it. A look costs no look-up by path, unless
nothing was written since the last one: files stay open, and what is read is what is new of them.
"""

from __future__ import annotations

import os
import re
import time

import disttrace.journal.format as fmt

MOST_READ = 16 << 10
"""Bytes of a look: a job that is well may have written megabytes since the last one."""
NEXT_S = 1.0
"""So seldom one looks for the next segment while nothing is new in this one."""
_BEGIN = b'{"%s":' % fmt.BEGIN.encode()
_BESIDE = b'"h":'
"""In the begins of threads beside the main one."""
_SEGMENT = re.compile(rf"\d+{re.escape(fmt.OPS_SUFFIX)}")
_CALL = re.compile(rb'"s":(\d+)')
_STORE_CALL = re.compile(rb'^\{"def":"call","n":(\d+),.*"kind":"store"', re.MULTILINE)


class Progress:
    """Of the main thread of ``path``: it may stand still while threads beside it go on."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._number = 0
        self._segment = self._definitions = -1
        self._end = self._defined = 0
        """Of what was written into the segment, and of the definitions that were read."""
        self._store_calls: set[bytes] = set()
        self._found: tuple[int, int] | None = None
        self._next_at = 0.0

    def position(self) -> tuple[int, int] | None:
        """Segment and byte of its begin; None: there was none yet among what is looked at. Raises
        OSError."""
        if self._segment < 0:
            self._open(self._newest_segment())
        start, data = self._new()
        while not data and (number := self._next()):
            self._open(number)
            start, data = self._new()
        if data:
            self._read_definitions()
            self._look_for_begin(start, data)
        return self._found

    def close(self) -> None:
        """Let go of the files."""
        for fd in (self._segment, self._definitions):
            if fd >= 0:
                os.close(fd)
        self._segment = self._definitions = -1

    def _open(self, number: int) -> None:
        fd = fmt.open_own(fmt.segment_name(self._path, number), os.O_RDONLY)
        if self._segment >= 0:
            os.close(self._segment)
        self._segment, self._number, self._end = fd, number, 0

    def _new(self) -> tuple[int, bytes]:
        """The last of the whole lines that were written since, and where they begin."""
        start = self._end
        data = os.pread(self._segment, MOST_READ, start)
        if len(data) == MOST_READ and data[-1]:
            start = max(start, written(self._segment, start) - MOST_READ)
            data = os.pread(self._segment, MOST_READ, start)
        data = data[: data.rfind(b"\n") + 1]  # behind it are zeros
        self._end = start + len(data)
        return start, data

    def _next(self) -> int:
        """The number of the next segment; 0: there is none."""
        now = time.monotonic()
        if now < self._next_at:
            return 0
        if os.path.exists(fmt.segment_name(self._path, self._number + 1)):
            return self._number + 1
        self._next_at = now + NEXT_S
        is_gone = os.fstat(self._segment).st_nlink == 0  # and several after it may be
        newest = self._newest_segment() if is_gone else 0
        return newest if newest > self._number else 0

    def _look_for_begin(self, start: int, data: bytes) -> None:
        end = len(data)
        while (end := data.rfind(_BEGIN, 0, end)) >= 0:
            line = data[end : data.find(b"\n", end)]
            call = _CALL.search(line)
            asks = call is not None and call[1] in self._store_calls
            if not asks and _BESIDE not in line:
                self._found = self._number, start + end
                return

    def _newest_segment(self) -> int:
        number = 1
        if not os.path.exists(fmt.segment_name(self._path, number)):  # the oldest ones are dropped
            folder, name = os.path.split(self._path)
            ours = (n.removeprefix(f"{name}.") for n in os.listdir(folder) if n.startswith(name))
            numbers = (int(n.removesuffix(fmt.OPS_SUFFIX)) for n in ours if _SEGMENT.fullmatch(n))
            number = max(numbers, default=number)
        while os.path.exists(fmt.segment_name(self._path, number + 1)):
            number += 1
        return number

    def _read_definitions(self) -> None:
        """What was defined since: a call is before any of its operations is on record."""
        if self._definitions < 0:
            self._definitions = fmt.open_own(fmt.definitions_name(self._path), os.O_RDONLY)
        size = os.fstat(self._definitions).st_size
        if size <= self._defined:
            return
        data = os.pread(self._definitions, size - self._defined, self._defined)
        whole = data[: data.rfind(b"\n") + 1]
        self._defined += len(whole)
        self._store_calls.update(_STORE_CALL.findall(whole))


def written(fd: int, start: int = 0) -> int:
    """How much was written into a segment, of which ``start`` bytes were; a mapped one is longer,
    and zeros from there on.
    """
    low, high = start, os.fstat(fd).st_size
    while low < high:
        middle = (low + high) // 2
        if os.pread(fd, 1, middle) not in (b"", b"\0"):
            low = middle + 1
        else:
            high = middle
    return low
