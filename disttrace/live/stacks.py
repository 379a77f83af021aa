"""Where the threads stand when nothing moves: the Python line of a rank outside communication."""

from __future__ import annotations

import sys
import threading
from types import FrameType

from disttrace import guard
from disttrace.capture.context import Capture

QUIET_NS = 3_000_000_000
"""Nanoseconds without a begin or an end after which stacks are taken."""

_SOONEST_NS = 2_000_000_000
_LATEST_NS = 10_000_000_000
_DEPTH = 16
_DEEPEST = 200
_THREADS = 64
_MOST = 4_000  # definitions are never dropped, and a rank that computes stands elsewhere each time

Line = tuple[str, int, str]


class Stacks:
    """Takes the stack of every thread while nothing begins or ends, and notes what changed.

    Code and line are copied and the frames are let go of at once: a frame that outlives its
    function keeps the function's tensors and groups, which would then die in our thread.
    """

    def __init__(self, capture: Capture) -> None:
        self._capture = capture
        self._progress = (0, 0)
        self._since = 0  # when the progress was first seen as it is; 0: not yet
        self._due = 0
        self._noted: dict[int, int] = {}  # stack number by thread number
        self._written = 0

    def look(self, now: int) -> None:
        """Once per heartbeat; ``now`` is in nanoseconds of any steady clock."""
        progress = self._capture.recorder.progress()
        if progress != self._progress or not self._since:
            self._progress, self._since, self._due = progress, now, now + QUIET_NS
            self._noted.clear()
        elif now >= self._due and self._written < _MOST:
            self._due = now + min(max((now - self._since) // 2, _SOONEST_NS), _LATEST_NS)
            self._take()

    def _take(self) -> None:
        recorder = self._capture.recorder
        own = threading.get_ident()
        known = {t.ident: (t.name, t.native_id) for t in threading.enumerate()}
        for ident, lines in _copies(skip=own).items():
            name, native = known.get(ident, ("", None))
            thread = recorder.thread_number(ident, name, native)
            stack = recorder.stack(self._shown(lines)) if lines else 0
            if self._noted.get(thread) != stack:
                self._noted[thread] = stack
                self._written += 1
                recorder.stands_at(thread, stack)

    def _shown(self, lines: list[Line]) -> list[Line]:
        """At most 16 lines; where the user's lies deeper, half of them from there on."""
        lines = [line for line in lines if not guard.is_our_file(line[0])]
        if len(lines) <= _DEPTH:
            return lines
        user = next((n for n, line in enumerate(lines) if not self._is_torch(line[0])), 0)
        if user < _DEPTH - 1:
            return lines[:_DEPTH]
        return lines[: _DEPTH // 2] + lines[user : user + _DEPTH // 2]

    def _is_torch(self, file: str) -> bool:
        return self._capture.sites.is_torch_file(file)


def _copies(*, skip: int) -> dict[int, list[Line]]:
    """(file, line, function) of every thread's frames, innermost first; no frame survives this."""
    found: dict[int, list[Line]] = {}
    frames = sys._current_frames()
    frame: FrameType | None = frames.pop(skip, None)
    try:
        for ident in list(frames)[:_THREADS]:
            lines: list[Line] = []
            frame = frames.pop(ident)
            while frame is not None and len(lines) < _DEEPEST:
                code = frame.f_code
                lines.append((code.co_filename, frame.f_lineno or 0, code.co_name))
                frame = frame.f_back
            found[ident] = lines
    finally:
        frame = None
        frames.clear()
    return found
