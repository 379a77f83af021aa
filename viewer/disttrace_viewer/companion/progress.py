"""The newest segment of a journal as it grows, and whether its process has begun anything lately.

Only begins of the main thread count, and none of a store that is polled. A look reads at most some
kilobytes, and costs no look-up by path unless nothing was written since the last one.
"""

from __future__ import annotations

import os
import re
import time

import disttrace.journal.format as fmt
from disttrace_viewer.load.tail import GrowingDefinitions, Tail, newest_segment

MOST_READ = 16 << 10
"""Bytes of a look: a job that is well may have written megabytes since the last one."""
NEXT_S = 1.0
"""So seldom one looks for the next segment while nothing is new in this one."""
_BEGIN = b'{"%s":' % fmt.BEGIN.encode()
_BESIDE = b'"h":'
"""In the begins of threads beside the main one."""
_CALL = re.compile(rb'"s":(\d{1,18})')


class NewestSegment:
    """Of the journal ``path``, of this user: files stay open."""

    def __init__(self, path: str) -> None:
        self.tail: Tail | None = None
        self._path = path
        self._number = 0
        self._next_at = 0.0

    def skip(self) -> None:
        """Go on behind all that is there now. Raises OSError."""
        self._open(newest_segment(self._path)).skip()

    def advance(self) -> bool:
        """Go on to the next segment; whether records between are missed. Raises OSError."""
        now = time.monotonic()
        if self.tail is None:
            self.skip()
            return True
        if not self.tail.at_end or now < self._next_at:
            return False
        if os.path.exists(fmt.segment_name(self._path, self._number + 1)):
            if self.tail.at_end:  # something may have come between the two looks
                self._open(self._number + 1)
            return False
        self._next_at = now + NEXT_S
        if self.tail.deleted:  # and several after it may be
            self._open(newest_segment(self._path))
            return True
        return False

    def close(self) -> None:
        if self.tail is not None:
            self.tail.close()

    def _open(self, number: int) -> Tail:
        found = Tail(fmt.segment_name(self._path, number), os.geteuid())
        self.close()
        self.tail, self._number = found, number
        return found


class Pulse:
    """The journal ``base`` in ``directory``; ``quiet_since`` is on the clock of its caller."""

    def __init__(self, directory: str, base: str, quiet_since: float) -> None:
        self.quiet_since = quiet_since
        path = os.path.join(directory, base)
        self._segment = NewestSegment(path)
        self._definitions = GrowingDefinitions(path, os.geteuid())
        self._definitions.read()

    @property
    def launcher(self) -> bool:
        """Whether it is torchrun's agent, which asks its store all the time."""
        return self._definitions.is_agent

    def look(self, now: float) -> bool:
        """Whether anything was begun since the last look."""
        try:
            moved = not self.launcher and self._has_begun()
        except OSError:
            return False  # the folder is gone, or nothing is there yet
        if moved:
            self.quiet_since = now
        return moved

    def close(self) -> None:
        self._definitions.close()
        self._segment.close()

    def _has_begun(self) -> bool:
        self._segment.advance()
        lines = [] if self._segment.tail is None else self._segment.tail.recent(MOST_READ)
        if lines:
            self._definitions.read()  # a call is before any of its operations is on record
        return any(map(self._is_begin, reversed(lines)))

    def _is_begin(self, line: bytes) -> bool:
        if not line.startswith(_BEGIN) or _BESIDE in line:
            return False
        number = _CALL.search(line)
        call = None if number is None else self._definitions.get("call", int(number[1]))
        return (call or {}).get("kind") != fmt.STORE
