"""Where a journal's newest operation stands that gets anywhere: one that is none of a store.

Who polls a store begins operations all the time, and waits. What is asked here is asked now and
then, of the files, so that recording knows nothing of it.
"""

from __future__ import annotations

import os
import re

import disttrace.journal.format as fmt

_END = 512 << 10
"""Beyond what a mapped segment is longer than what was written into it."""
_MOST_LINES = 2000
_BEGIN = b'{"%s":' % fmt.BEGIN.encode()
_BESIDE = b'"h":'
"""In the begins of threads beside the main one."""
_SEGMENT = re.compile(rf"\d+{re.escape(fmt.OPS_SUFFIX)}")
_CALL = re.compile(rb'"s":(\d+)')
_STORE_CALL = re.compile(rb'^\{"def":"call","n":(\d+),.*"kind":"store"', re.MULTILINE)


class Progress:
    """Of the journal ``path``; ``main``: of the main thread, which may stand still while threads
    beside it go on.
    """

    def __init__(self, path: str, *, main: bool) -> None:
        self._path = path
        self._main = main
        self._segment = 1
        self._store_calls: set[bytes] = set()
        self._defined = 0

    def position(self) -> tuple[int, int] | None:
        """Segment and byte of its begin; None: it is not among the newest. Raises OSError."""
        self._segment = self._newest_segment()
        segment = fmt.segment_name(self._path, self._segment)
        with fmt.opened_own(segment, os.O_RDONLY) as fd:
            start = max(0, os.fstat(fd).st_size - _END)
            data = os.pread(fd, _END, start)
        self._read_definitions()
        end = data.rfind(b"\n") + 1  # behind it are zeros: to strip them would hold the GIL
        for _ in range(_MOST_LINES):
            end = data.rfind(_BEGIN, 0, end)
            if end < 0:
                break
            line = data[end : data.find(b"\n", end)]
            call = _CALL.search(line)
            asks = call is not None and call[1] in self._store_calls
            if not asks and not (self._main and _BESIDE in line):
                return self._segment, start + end
        return None

    def _newest_segment(self) -> int:
        number = self._segment
        if not os.path.exists(fmt.segment_name(self._path, number)):  # the oldest ones are dropped
            folder, name = os.path.split(self._path)
            ours = (n.removeprefix(f"{name}.") for n in os.listdir(folder) if n.startswith(name))
            numbers = (int(n.removesuffix(fmt.OPS_SUFFIX)) for n in ours if _SEGMENT.fullmatch(n))
            number = max(numbers, default=number)
        while os.path.exists(fmt.segment_name(self._path, number + 1)):
            number += 1
        return number

    def _read_definitions(self) -> None:
        """What was defined since: a call is before any of its operations is on record."""
        with fmt.opened_own(fmt.definitions_name(self._path), os.O_RDONLY) as fd:
            data = os.pread(fd, max(0, os.fstat(fd).st_size - self._defined), self._defined)
        whole = data[: data.rfind(b"\n") + 1]
        self._defined += len(whole)
        self._store_calls.update(_STORE_CALL.findall(whole))
