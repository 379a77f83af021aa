"""Whether the main thread of a process has begun anything since the last look, by its journal.

Calls of a store that is polled count for nothing. A look reads at most some kilobytes, and costs no
look-up by path unless nothing was written since the last one: files stay open.
"""

from __future__ import annotations

import os
import re
import time

import disttrace.journal.format as fmt
from disttrace_viewer.load.tail import Defined, newest_segment, written

MOST_READ = 16 << 10
"""Bytes of a look: a job that is well may have written megabytes since the last one."""
NEXT_S = 1.0
"""So seldom one looks for the next segment while nothing is new in this one."""
_BEGIN = b'{"%s":' % fmt.BEGIN.encode()
_BESIDE = b'"h":'
"""In the begins of threads beside the main one."""
_CALL = re.compile(rb'"s":(\d{1,18})')


class Pulse:
    """The journal ``base`` in ``directory``; ``quiet_since`` is on the clock of its caller."""

    def __init__(self, directory: str, base: str, quiet_since: float) -> None:
        self.quiet_since = quiet_since
        self._path = os.path.join(directory, base)
        self._number = 0
        self._segment = -1
        self._end = 0
        """Of what was written into the segment."""
        self._defined = Defined(self._path, os.geteuid())
        self._defined.read()
        self._found: tuple[int, int] | None = None
        self._next_at = 0.0

    @property
    def launcher(self) -> bool:
        """Whether it is torchrun's agent: it asks its store all the time, and says itself when it
        stands still."""
        return self._defined.known.is_agent

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
            self._open(newest_segment(self._path))
        start, data = self._new()
        while not data and (number := self._next()):
            self._open(number)
            start, data = self._new()
        if data:
            self._defined.read()  # a call is before any of its operations is on record
            self._look_for_begin(start, data)
        return self._found

    def close(self) -> None:
        self._defined.close()
        if self._segment >= 0:
            os.close(self._segment)
        self._segment = -1

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
        newest = newest_segment(self._path) if is_gone else 0
        return newest if newest > self._number else 0

    def _look_for_begin(self, start: int, data: bytes) -> None:
        end = len(data)
        while (end := data.rfind(_BEGIN, 0, end)) >= 0:
            line = data[end : data.find(b"\n", end)]
            number = _CALL.search(line)
            call = None if number is None else self._defined.known.get("call", int(number[1]))
            if (call or {}).get("kind") != fmt.STORE and _BESIDE not in line:
                self._found = self._number, start + end
                return
