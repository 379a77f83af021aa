"""What was written to journals since the last look, without reading them again."""

from __future__ import annotations

import os
from collections.abc import Sequence

import disttrace.journal.format as fmt
from disttrace_viewer.load.discover import Files, discover
from disttrace_viewer.load.files import open_regular
from disttrace_viewer.load.problems import Problems

_END = 512 << 10
"""Beyond what a mapped segment is longer than what was written into it."""
_LITTLE = 4 << 10
_BEAT = b'{"%s":' % fmt.HEARTBEAT.encode()


class Growth:
    """The journals below some folders, and how much of each was looked at."""

    def __init__(self, paths: Sequence[str]) -> None:
        self._paths = list(paths)
        self._seen: dict[str, int] = {}
        """By file: the size of definitions, and of a segment the end of its last whole line."""

    def look(self) -> bool:
        """Whether anything but heartbeats is new. At the first look everything is, and so it is
        where a file is new or gone. Nothing is raised: what cannot be read has not grown.
        """
        found = discover(self._paths, Problems())
        files = {path for one in found for path in one.paths}
        changed = not files >= self._seen.keys()
        self._seen = {path: end for path, end in self._seen.items() if path in files}
        for one in found:
            changed |= self._look(one)
        return changed

    def _look(self, one: Files) -> bool:
        changed = False
        if one.definitions is not None:
            try:
                size = os.stat(one.definitions).st_size
            except OSError:
                size = -1
            changed = self._seen.get(one.definitions) != size
            self._seen[one.definitions] = size
        newest = max(one.segments, default=0)
        for number, path in one.segments.items():
            if number < newest - 1 and path in self._seen:
                continue  # nothing is written into it any more
            try:
                fd = open_regular(path)
            except OSError:
                changed |= self._seen.setdefault(path, -1) != -1
                continue
            try:
                changed |= self._segment(path, fd)
            finally:
                os.close(fd)
        return changed

    def _segment(self, path: str, fd: int) -> bool:
        size = os.fstat(fd).st_size
        known = self._seen.get(path, -1)
        if known < 0 or size < known or size - known > _END:
            start = max(0, size - _END)
            end = start + len(os.pread(fd, size - start, start).rstrip(b"\0"))
            self._seen[path] = end
            return end != known
        data = os.pread(fd, _LITTLE, known)
        if not data or data[0] == 0:
            return False
        if len(data) == _LITTLE and b"\0" not in data:
            data = os.pread(fd, size - known, known)
        # A line with a NUL in it is being written, and ends later.
        whole = data[: data.find(b"\0")] if b"\0" in data else data
        whole = whole[: whole.rfind(b"\n") + 1]
        self._seen[path] = known + len(whole)
        return not all(line.startswith(_BEAT) for line in whole.splitlines())
