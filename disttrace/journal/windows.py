"""The part of a mapped segment that lines are put into, and how it outlives its file.

Anybody may shorten a file while it is mapped (``: > file``, an editor, a copy on write that finds
the disk full), and the next store would end the process by SIGBUS. So a mapping is *guarded*, by a
handler in C (``_mapping.c``): the store goes to memory of our own, and the window is *lost*. Where
nothing was compiled, or the handler cannot be ours, there are no mappings.
"""

from __future__ import annotations

import functools
import mmap
import os
from collections.abc import Callable
from typing import Any

from disttrace.foreign import ours
from disttrace.journal import compiled


class PlainWindow:
    """A window over the mapping's own ``write``: it claims its place and copies the line in one
    call of C, so threads and signal handlers cannot come between, and no lock is needed. ``put``
    raises ValueError where the line does not fit. The native core has one of its own, in C.
    """

    def __init__(self, mapping: mmap.mmap, position: int) -> None:
        self._mapping = mapping
        mapping.seek(position)
        self.put: Callable[[bytes], object] = mapping.write

    def tell(self) -> int:
        """Where the next line goes, from the window's start."""
        return self._mapping.tell()

    def seal(self) -> int:
        """Let no further line in; returns where the content ends."""
        position = self._mapping.tell()
        self._mapping.seek(0, os.SEEK_END)
        # Another thread may have put a line between the two calls above. What follows the last
        # line is NUL, for the window was reserved and never used before.
        return max(position, self._mapping.rfind(b"\n", position) + 1)

    def close(self) -> None:
        """The mapping is closed by who made it."""


# Makes the window over a mapping whose next line goes to a position.
MakeWindow = Callable[[mmap.mmap, int], PlainWindow]


class Guard:
    """Guards a mapping until it is released or dropped. Raises OSError where it cannot be done."""

    def __init__(self, mapping: mmap.mmap | memoryview) -> None:
        self._held: object = _guards().guard(mapping)

    def is_lost(self) -> bool:
        """Whether a line was put where the file had ended."""
        return bool(_guards().lost(self._held))

    def release(self) -> None:
        _guards().release(self._held)


def shared(fd: int, size: int) -> memoryview:
    """The beginning of a file, mapped until this process ends, and no descriptor kept. Raises
    OSError.
    """
    found: memoryview = _guards().share(fd, size)
    return found


@functools.cache
def _guards() -> Any:
    try:
        return compiled.load("journal._mapping")
    except ours(ImportError):
        return None


def uncompiled() -> str | None:
    """Why there is no guard at all; None: there is."""
    return None if _guards() else "what survives a shortened file was not compiled"


def guarded() -> str | None:
    """Sees to it that the handler is ours, also where another was set over it. Why it cannot
    be; None: it is.
    """
    if (reason := uncompiled()) is not None:
        return reason
    return None if _guards().ready() else "the program ignores, blocks or handles SIGBUS"
