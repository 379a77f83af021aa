"""How long writing may hold the program up before its journal is given up.

On a network file system a write can block for as long as a server pleases. The one that blocks
cannot be cut short, but it can be the last.
"""

from __future__ import annotations

import time

_clock = time.perf_counter_ns

_SLOW = 1_000_000
"""Nanoseconds from which a write is held against the file system: below, it was none's fault."""

_WINDOWS = 10
"""All slow writes are added up over so many times the bound of one."""


class SlowWrites(OSError):  # noqa: N818 - what it is about, in one sentence of ours
    """Writes take too long; the text says how long they took. What they wrote is written."""


class WriteBudget:
    """Adds up the time of one journal's writes.

    ``bound`` is in seconds: a single write may take that long, and all slow ones together half of
    ten times that; 0 is no limit. Threads may count at once: a sum that misses one of
    them grows with the next.
    """

    def __init__(self, bound: float) -> None:
        self._one = int(bound * 1e9)
        self._window = self._one * _WINDOWS
        self._since = _clock()
        self._sum = 0

    def wrote(self, begun: int) -> None:
        """A write that began at ``begun`` (``perf_counter_ns``) is over. Raises SlowWrites."""
        now = _clock()
        took = now - begun
        if took < _SLOW or not self._one:
            return
        if took > self._one:
            raise SlowWrites(f"one write took {took / 1e9:.1f} s")
        if begun - self._since > self._window:
            self._since, self._sum = begun, 0
        self._sum += took
        if self._sum > self._window // 2:
            lasted = (now - self._since) / 1e9
            raise SlowWrites(f"writes took {self._sum / 1e9:.1f} of {lasted:.1f} s")
