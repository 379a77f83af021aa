"""Whether the main thread of a process has begun anything since the last look, by its journal.

A look reads at most some kilobytes, however much was written meanwhile: what a job that is well
writes is nobody's business here.
"""

from __future__ import annotations

import os

import disttrace.journal.format as fmt
from disttrace.journal.progress import Progress

_LAUNCHER = b'"role":"agent"'
_FIRST_LINE = 16 << 10


class Pulse:
    """The journal ``base`` in ``directory``; ``quiet_since`` is on the clock of its caller."""

    def __init__(self, directory: str, base: str, quiet_since: float) -> None:
        self.quiet_since = quiet_since
        self._path = os.path.join(directory, base)
        self._progress = Progress(self._path)
        self._newest: tuple[int, int] | None = None
        self.launcher = self._is_launcher()
        """Whether it is torchrun's agent: it asks its store all the time, and says itself when it
        stands still."""

    def look(self, now: float) -> bool:
        """Whether the main thread began something since the last look."""
        if self.launcher:
            return False
        try:
            newest = self._progress.position()
        except OSError:
            return False  # the folder is gone, or nothing is there yet
        moved = newest is not None and self._newest is not None and newest != self._newest
        if newest is not None:
            self._newest = newest
        if moved:
            self.quiet_since = now
        return moved

    def close(self) -> None:
        """Nobody looks any more."""
        self._progress.close()

    def _is_launcher(self) -> bool:
        try:
            with fmt.opened_own(fmt.definitions_name(self._path), os.O_RDONLY) as fd:
                return _LAUNCHER in os.pread(fd, _FIRST_LINE, 0)
        except OSError:
            return False
