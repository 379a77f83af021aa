"""The text of source lines, where the file is here and is the one that ran."""

from __future__ import annotations

import linecache
import os
import stat

from disttrace.journal.code_files import is_library
from disttrace.redact import Masker
from disttrace_viewer.trace.process import Frame

LONGEST = 160
"""Characters of a line that are shown."""
LARGEST = 4_000_000
"""Bytes of a file that is read: none that a person wrote is larger."""


class Sources:
    """Reads each file once. ``before_ns``: what was written later is not what ran."""

    def __init__(self, before_ns: int) -> None:
        self._before_ns = before_ns
        self._known: dict[str, bool] = {}
        self._masked = Masker()

    def text(self, frame: Frame) -> str | None:
        """The line of a frame of the program, masked as journals are; None where it is not known.

        A journal may come from anywhere and name any file, so only Python's are looked at.
        """
        if not self._readable(frame.file):
            return None
        line = linecache.getline(frame.file, frame.line).strip()
        return self._masked.text(line[:LONGEST]) or None

    def _readable(self, path: str) -> bool:
        found = self._known.get(path)
        if found is None:
            found = self._known[path] = self._look(path)
        return found

    def _look(self, path: str) -> bool:
        if not path.endswith(".py") or not os.path.isabs(path) or is_library(path):
            return False
        try:
            about = os.stat(path)
        except (OSError, ValueError):
            return False
        fits = stat.S_ISREG(about.st_mode) and about.st_size <= LARGEST
        return fits and about.st_mtime_ns <= self._before_ns
