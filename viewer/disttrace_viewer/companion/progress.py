"""Whether the main thread of a process has begun anything since the last look, by its journal.

Calls of a store that is polled count for nothing. A look reads at most some kilobytes, and costs no
look-up by path unless nothing was written since the last one: files stay open.
"""

from __future__ import annotations

import os
import re
import time
from contextlib import suppress

import disttrace.journal.format as fmt
from disttrace_viewer.load.tail import written

MOST_READ = 16 << 10
"""Bytes of a look: a job that is well may have written megabytes since the last one."""
NEXT_S = 1.0
"""So seldom one looks for the next segment while nothing is new in this one."""
_BEGIN = b'{"%s":' % fmt.BEGIN.encode()
_BESIDE = b'"h":'
"""In the begins of threads beside the main one."""
_SEGMENT = re.compile(rf"\d{{1,18}}{re.escape(fmt.OPS_SUFFIX)}")
_CALL = re.compile(rb'"s":(\d+)')
_STORE_CALL = re.compile(rb'^\{"def":"call","n":(\d+),.*"kind":"store"', re.MULTILINE)
_LAUNCHER = b'"role":"agent"'
_FIRST_LINE = 16 << 10


class Pulse:
    """The journal ``base`` in ``directory``; ``quiet_since`` is on the clock of its caller."""

    def __init__(self, directory: str, base: str, quiet_since: float) -> None:
        self.quiet_since = quiet_since
        self._path = os.path.join(directory, base)
        self._number = 0
        self._segment = self._definitions = -1
        self._end = self._defined = 0
        """Of what was written into the segment, and of the definitions that were read."""
        self._store_calls: set[bytes] = set()
        self._found: tuple[int, int] | None = None
        self._next_at = 0.0
        self.launcher = False
        """Whether it is torchrun's agent: it asks its store all the time, and says itself when it
        stands still."""
        with suppress(OSError), fmt.opened_own(fmt.definitions_name(self._path), os.O_RDONLY) as fd:
            self.launcher = _LAUNCHER in os.pread(fd, _FIRST_LINE, 0)

    def look(self, now: float) -> bool:
        if self.launcher:
            return False
        before = self._found
        try:
            newest = self.position()
        except OSError:
            return False  # the folder is gone, or nothing is there yet
        moved = before is not None and newest != before
        if moved:
            self.quiet_since = now
        return moved

    def position(self) -> tuple[int, int] | None:
        """Segment and byte of the newest begin of the main thread that is none of a store's; None:
        there was none yet among what is looked at. Raises OSError.
        """
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
