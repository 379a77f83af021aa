"""Whether a traced process has done anything since the last look, from the end of its journal.

A look reads at most half a megabyte, however much was written meanwhile: what a job that is well
writes is nobody's business here.
"""

from __future__ import annotations

import os

import disttrace.journal.format as fmt

_END = 512 << 10
"""Beyond what a mapped segment is longer than what was written into it."""
_BACKGROUND = tuple(b'{"%s":' % kind.encode() for kind in (fmt.HEARTBEAT, fmt.STANDS_AT))


class Pulse:
    """The journal ``base`` in ``directory``; ``quiet_since`` is on the clock of its caller."""

    def __init__(self, directory: str, base: str, quiet_since: float) -> None:
        self.quiet_since = quiet_since
        self._path = os.path.join(directory, base)
        self._segment = 1
        self._newest: tuple[int, int] | None = None

    def look(self, now: float) -> bool:
        """Whether something other than a sign of life was written since the last look."""
        newest = self._position()
        moved = newest is not None and self._newest is not None and newest != self._newest
        if newest is not None:
            self._newest = newest
        if moved:
            self.quiet_since = now
        return moved

    def _position(self) -> tuple[int, int] | None:
        """Segment and byte at which the newest record that is no sign of life ends."""
        while os.path.exists(fmt.segment_name(self._path, self._segment + 1)):
            self._segment += 1
        try:
            fd = fmt.open_own(fmt.segment_name(self._path, self._segment), os.O_RDONLY)
        except OSError:
            return None
        try:
            size = os.fstat(fd).st_size
            start = max(0, size - _END)
            data = os.pread(fd, _END, start).rstrip(b"\0")
        finally:
            os.close(fd)
        end = len(data)
        while end > 0:
            begin = data.rfind(b"\n", 0, end - 1) + 1
            if not data.startswith(_BACKGROUND, begin) and data[begin:end].strip():
                return self._segment, start + end
            end = begin
        return self._segment, 0
