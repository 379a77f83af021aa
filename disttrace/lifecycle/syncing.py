"""What is in the journal reaches the disk: soon after a process stands still, and else rarely.

A record is with the kernel when its call begins, which survives the process, not its host. The
kernel writes it back within half a minute; on a network file system nobody else sees it before. To
have it written takes milliseconds, or as long as a server is gone: a thread without Python does it
(``_answers.c``), so nothing of the program's waits, and no heartbeat is missed.
"""

from __future__ import annotations

from disttrace.capture.wrapping.context import Capture
from disttrace.lifecycle.gil_free_stacks import GilFreeStacks

RARELY_NS = 30_000_000_000
"""Nanoseconds between two times while operations begin and end, about as often as the kernel does:
the next store into a page of a mapped segment is a page fault after it, which may have to wait for
the file system."""

IN_MEMORY = frozenset({"tmpfs", "ramfs"})


class Syncing:
    """Decides when; ``look`` is called by the background thread, once a second."""

    def __init__(self, capture: Capture, native: GilFreeStacks) -> None:
        self._capture = capture
        self._native = native
        self._seen = self._synced = (0, 0)
        self._due = 0

    def look(self, now: int) -> None:
        """``now``: nanoseconds of a steady clock. Raises OSError where the file is another's."""
        recorder = self._capture.recorder
        progress = recorder.progress()
        stands, self._seen = progress == self._seen, progress
        if progress == self._synced or not (stands or now >= self._due):
            return
        if self._native.sync(recorder.descriptor()):
            self._synced, self._due = progress, now + RARELY_NS
