"""Whether the ranks of this host call the same things under the same numbers, a look at a time.

Each process compares itself with the first one of its job on this host, by the pages in which both
show what they called (``recording/courses.py``). What differs is a suspicion and no verdict: that
ranks are out of step is judged by the companion, from the journals, by the rules of ``diagnose``. A
suspicion that leads to nothing is asked about some times and then taken for the program's habit.
"""

from __future__ import annotations

import os
import time

from disttrace.identity import Identity
from disttrace.journal.descriptors import is_kernels
from disttrace.journal.format import CALLS_SUFFIX, is_plain_name, opened_own
from disttrace.lifecycle.meeting.place import place
from disttrace.lifecycle.meeting.roll import Roll
from disttrace.recording import shown
from disttrace.recording.courses import Courses
from disttrace.recording.shown import (
    COUNT,
    FIRST_ID,
    NEWEST,
    STREAM_BYTES,
    WORD,
    Compared,
    Page,
    offset,
)

LOOK_NS = 450_000_000


class InStep:
    """This process beside the first one of its job on this host."""

    def __init__(self, courses: Courses, root: str) -> None:
        """``root``: the folder of all journals."""
        self._courses = courses
        self._root = root
        self._roll = Roll(root)
        self._streams: dict[tuple[str, int], Compared] = {}
        self._due = 0
        self._identity: Identity | None = None

    def start(self, identity: Identity) -> None:
        """There is a journal from now on. Raises OSError."""
        self._identity = identity
        self._streams.clear()
        self._courses.start(self._path(identity, identity.base_name()))

    def look(self) -> bool:
        """Whether the companion has to judge. Raises OSError."""
        words, now, identity = self._courses.words, time.monotonic_ns(), self._identity
        if words is None or identity is None or now < self._due:
            return False
        self._due = now + LOOK_NS
        mine = {words[FIRST_ID + stream]: offset(stream) for stream in range(words[COUNT])}
        own = identity.base_name()
        found = False
        for base in self._roll.first(identity):
            if base == own or not mine:
                break  # whoever comes later looks at us
            if is_plain_name(base):
                found = self._beside(self._path(identity, base), mine, words) or found
        return found

    def _path(self, identity: Identity, base: str) -> str:
        return f"{place(identity.folder(self._root))}{base}{CALLS_SUFFIX}"

    def _beside(self, path: str, mine: dict[int, int], words: memoryview) -> bool:
        """Compare what one other process shows; what it has of ours is done with then."""
        found = False
        try:
            with opened_own(path, os.O_RDONLY) as fd:
                for name, there in shown.streams(fd):
                    at = mine.pop(name, None)
                    if at is not None:
                        known = self._streams.setdefault((path, name), Compared())
                        own = words[at // WORD : (at + STREAM_BYTES) // WORD]
                        found = _look(known, own, fd, there) or found
        except OSError as error:
            if not is_kernels(error):
                raise
            return found  # it shows nothing
        return found


def _look(known: Compared, own: memoryview, fd: int, at: int) -> bool:
    newest = (own[NEWEST], shown.newest(fd, at))
    if newest == known.newest and not known.asked:
        return False
    known.newest = newest
    ours = Page(memoryview(own.tobytes()).cast("Q"))
    return known.suspicious(ours, shown.read(fd, at))
