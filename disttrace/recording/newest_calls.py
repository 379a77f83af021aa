"""What this process called last in each stream of collectives, in pages that others here may read.

Ranks that are out of step are told from each other by what they called under equal numbers. To find
that in the journals, somebody would have to read all that all ranks write. So the native core
keeps, for each stream, of the newest calls where they were made and a digest of all calls up to
them: a multiplication and three stores for a call. Whoever compares reads these pages of another
process now and then (``shown.py``); what differs is for the companion to judge, by the journals.

The file is mapped, lies at the meeting place of this host's processes, and goes with its process.
Its first page is words: how many streams there are, and from ``FIRST_ID`` on what each is called.
Three more pages belong to each: a head (the newest number, how many lines there are, from
``FIRST_LINE`` on the lines), of the newest ``KEPT`` calls the lines, and of these the digests.
"""

from __future__ import annotations

import math
import os
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

from disttrace import foreign
from disttrace.journal import format as fmt
from disttrace.journal.code_files import is_program, programs_frame
from disttrace.journal.encoding import encode
from disttrace.journal.originals import patient
from disttrace.journal.own_file import allow
from disttrace.journal.segment import MAPPED, Guard, guarded, mechanism, shared
from disttrace.recording import shown
from disttrace.recording.core import PLAIN, PlainCore

_CALLERS = 3
_SIZE = shown.PAGE + shown.STREAMS * shown.STREAM_BYTES


class Courses:
    """The pages of this process."""

    def __init__(self, core: PlainCore, lock: Any) -> None:
        """``lock``: the recorder's, for calls are defined by many threads."""
        self._core: Any = core
        self._lock = lock
        self._opening = False
        """A signal handler that comes in the midst of it shows nothing: the lock lets it in."""
        self._path: str | None = None
        self._forget()

    def _forget(self) -> None:
        self.words: memoryview | None = None
        """The pages as words of 64 bits; None while there are none."""
        self._guard: Guard | None = None
        self._windows: dict[int, tuple[Any, Any, int, set[int]]] = {}
        """By counter: that, its window, the number of the stream, its lines."""
        self._values: dict[int, tuple[Any, int] | None] = {}
        """Counter and number of the streams of values, by hash of their names."""

    def start(self, path: str) -> None:
        """There is a journal from now on; the file of that name is made when it is needed."""
        with patient(self._lock):
            self.stop()
            if self._core.name != PLAIN:
                self._path = path

    def stop(self, *, forked: bool = False) -> None:
        """Nothing is shown any more; ``forked``: what was is the parent's."""
        with patient(self._lock):
            path, self._path = self._path, None
            if self._guard is None:
                return
            for counter, window, _, _ in self._windows.values():
                counter.page = None
                window.close()
            self._guard.release()
            self._forget()
            if path is not None and not forked:
                fmt.remove_own(path)

    def note(
        self, call: Any, counter: Any, name: Sequence[object], keys: Mapping[str, Any], place: int
    ) -> None:
        """A collective of the stream ``counter``, ``name`` in all members: ``keys`` of its record,
        ``place`` as of ``place_of``."""
        if self._path is None:
            return
        call.what, call.where = _what(call, keys), _hash([call.op, place])
        with patient(self._lock):
            known = self._windows.get(id(counter)) or self._opened(counter, name)
            if known is None or self.words is None:
                return
            first, lines = shown.offset(known[2]) // shown.WORD, known[3]
            if call.where not in lines and shown.FIRST_LINE + len(lines) < shown.KEPT:
                self.words[first + shown.FIRST_LINE + len(lines)] = call.where
                lines.add(call.where)
                self.words[first + shown.LINES] = len(lines)

    def value(self, name: Sequence[object], told: Sequence[object]) -> None:
        """Something that all members of the stream called ``name`` have to have equal."""
        key = _hash(name)
        with patient(self._lock):
            if self._path is not None and key not in self._values:
                counter = self._core.new_counter()
                opened = self._opened(counter, name)
                self._values[key] = None if opened is None else (counter, opened[2])
            counter, stream = self._values.get(key) or (None, 0)
            if counter is not None and self.words is not None:
                number, first = counter.next(), shown.offset(stream) // shown.WORD
                before = self.words[first + 2 * shown.KEPT + (number - 1) % shown.KEPT]
                value = (before * shown.FACTOR + _hash(told)) & shown.MASK
                self.words[first + 2 * shown.KEPT + number % shown.KEPT] = value
                self.words[first + shown.NEWEST] = number

    def _opened(
        self, counter: Any, name: Sequence[object]
    ) -> tuple[Any, Any, int, set[int]] | None:
        """The pages of a stream, made; None where it is not shown."""
        if self._path is None or self._opening:
            return None
        self._opening = True
        try:
            return self._open(counter, name)
        except foreign.ours(OSError, ValueError):
            self.stop()  # no room, or no mapping is safe here
            return None
        finally:
            self._opening = False

    def _open(self, counter: Any, name: Sequence[object]) -> tuple[Any, Any, int, set[int]] | None:
        words = self._map() if self.words is None else self.words
        number = len(self._windows)
        if number >= shown.STREAMS or counter.n:
            return None  # of a stream that has begun unseen no digest says anything
        at = shown.offset(number)
        assert self._path is not None
        with fmt.opened_own(self._path, os.O_RDWR) as fd:
            os.posix_fallocate(fd, at, shown.STREAM_BYTES)  # blocks for what is stored there
        window = self._core.new_window(words.cast("B")[at : at + shown.STREAM_BYTES], 0)
        words[shown.FIRST_ID + number] = _hash(name)
        words[shown.COUNT] = number + 1
        counter.page = window
        self._windows[id(counter)] = found = counter, window, number, set[int]()
        return found

    def _map(self) -> memoryview:
        assert self._path is not None
        how, why = mechanism(os.path.dirname(self._path))
        if how != MAPPED or guarded() is not None:
            raise ValueError(why)
        allow(_SIZE)
        with fmt.opened_own(self._path, os.O_CREAT | os.O_EXCL | os.O_RDWR) as fd:
            os.ftruncate(fd, _SIZE)
            os.posix_fallocate(fd, 0, shown.PAGE)
            mapping = shared(fd, _SIZE)
        self._guard = Guard(mapping)
        self.words = words = mapping.cast("Q")
        return words


def place_of(frames: Sequence[tuple[str, int, str]]) -> int:
    """A hash of the user's line and its callers', for that may be a helper's; equal in all
    processes. Frames are innermost first."""
    at = programs_frame([file for file, _, _ in frames])
    if at is None:
        return 0
    callers = [frame for frame in frames[at + 1 :] if is_program(frame[0])]
    return _hash([frames[at], *callers[:_CALLERS]])


def _what(call: Any, keys: Mapping[str, Any]) -> int:
    """A hash of what has to be equal in all members: of sizes what a rule compares one by one."""
    told: list[object] = [call.op, keys.get("root"), keys.get("reduce_op")]
    outputs = (keys.get("args") or {}).get("output_shapes") or []
    if call.op in fmt.EQUAL_SIZES and call.whole and all(one == outputs[0] for one in outputs):
        told += [
            sorted(set(keys.get("dtypes") or ())),
            [math.prod(s) for s in keys["shapes"] or ()],
        ]
    return _hash(told)


def _hash(told: object) -> int:
    """Never 0."""
    return zlib.crc32(encode(told)) * shown.FACTOR & shown.MASK or 1
