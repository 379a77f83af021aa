"""Puts begins and ends on record, interns what repeats, and keeps the journal going.

One recorder per process. A begin is in the journal before ``begin`` returns; nothing here holds a
tensor, a Work, a group, a store or a frame. What is done for every operation is the core's
(``core.py``); the lock is held for a microsecond and never across a call into c10d.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from disttrace import errors, foreign
from disttrace.journal import format as fmt
from disttrace.journal.descriptors import attempt
from disttrace.journal.encoding import encode, json_text
from disttrace.journal.originals import RLock, get_ident, get_native_id, patient
from disttrace.journal.segment import SegmentFull, SegmentLost
from disttrace.journal.writer import JournalWriter
from disttrace.recording import core as cores
from disttrace.recording.interning import LOCK, InternTable
from disttrace.recording.newest_calls import Courses
from disttrace.recording.operation import Operation

_LOSSES = 8
"""Segments that may be lost: a user who deletes one after another does not want them."""


class Recorder(InternTable):
    """Begins and ends of operations, definitions, and the journal they go to.

    ``process`` is the id of this process, which a fork changes. ``open_journal`` makes the journal
    when the first record comes; ``opening`` gives the records that it starts with. When writing
    fails, ``on_failure`` is called once and the recorder is off; where only a segment is lost,
    ``on_loss`` is told why and it goes on in the next. ``core`` is ``c`` or ``python``.
    """

    def __init__(
        self,
        *,
        t0: int,
        process: Callable[[], str],
        open_journal: Callable[[], JournalWriter],
        opening: Callable[[], Sequence[Mapping[str, Any]]],
        on_failure: Callable[[BaseException], None],
        on_loss: Callable[[str], None] = lambda why: None,
        core: str = cores.PLAIN,
    ) -> None:
        super().__init__()
        self.off = False
        self._process = process
        self._open_journal = open_journal
        self._opening = opening
        self._on_failure = on_failure
        self._on_loss = on_loss
        self._losses = 0
        self._making_room = False
        self._opens = RLock()  # its owner may be busy for long, on a slow file system
        self._late: list[bytes] = []
        self._in_background = 0  # bytes of heartbeats and the like, in the current segment
        # ``core.put`` appends a line to the journal; it is another after each roll and fork.
        self.issuing: set[int] = set()  # idents of threads that have issued an operation
        self.core = made = cores.make(core, self.recover, self._register_thread)
        made.t0 = t0
        self.clock = time.perf_counter_ns
        self.main_ident = _main_ident()
        made.put = self._open_and_put
        self.courses = Courses(made, LOCK)
        self.threads = made.threads  # ``threads.state`` is the calling thread's
        self.begin, self.issued, self.wait_begins = made.begin, made.issued, made.wait_begins
        self.end, self.end_synchronous = made.end, made.end_synchronous

    # -- operations --------------------------------------------------------------------------

    def failed(self, operation: Operation, error: BaseException, *, on_issue: bool) -> None:
        """The user's call raised. One that raised on issue gives its sequence number back."""
        counter = operation.call.counter
        if on_issue and counter is not None:
            counter.give_back(operation.seq)
        text = self.string(errors.first_line(error))
        self.end(operation, b',"x":%d%b' % (text, b',"f":1' if on_issue else b""))

    def gave_up(self, operation: Operation, error: BaseException) -> None:
        """A wait for it reached its limit, and its work goes on: it stays in flight, with an end on
        record until another wait begins or it is over."""
        operation.asked = True  # nobody will say that nobody waited
        extra = b',"x":%d,"r":1' % self.string(errors.first_line(error))
        self.core.record(fmt.END_LINE % (operation.n, self.since(operation), extra))

    def completed(
        self, operation: Operation, *, gap: int, duration: int | None = None, at: int | None = None
    ) -> None:
        """A thread that does not wait saw it complete, ``at`` or now. ``gap``: by how much that may
        be late; ``duration``: the backend's own; in ns, on the clock of begins."""
        extra = b"" if duration is None else b',"z":%d' % duration
        self.core.over(operation)
        elapsed = (self.clock() if at is None else at) - operation.begin
        self.core.record(fmt.COMPLETE_LINE % (operation.n, elapsed, gap, extra))

    def lost(self, operation: Operation, *, asked: bool = False) -> None:
        """Nobody will say when it is over. ``asked``: nor need it be for want of a wait."""
        if not operation.ended:
            self.core.lost(operation, b',"o":1' if asked else b"")

    def polled(self, operation: Operation, how: str) -> None:
        """The program polled for completion, or took a future (``get_future``, ...)."""
        asked = (operation.n, self.since(operation), json_text(how))
        self.core.record(fmt.ASKED_LINE % asked)

    def heartbeat(self) -> None:
        if self._journal is not None:
            self._background(fmt.HEARTBEAT_LINE % self.now())

    def sampled(self, thread_number: int, stack: int) -> None:
        """Say where a thread stands (stack 0: nowhere known)."""
        self._background(fmt.STANDS_AT_LINE % (self.now(), thread_number, stack))

    def progress(self) -> tuple[int, int]:
        """Changes whenever an operation begins, goes on or ends; heartbeats do not count."""
        journal = self._journal
        if journal is None:
            return 0, 0
        segment, size = journal.position()
        return segment, size - self._in_background

    def descriptor(self) -> int:
        """The current segment's, -1 without one. Raises OSError."""
        with patient(LOCK):
            return -1 if self._journal is None else self._journal.descriptor

    def progress_mark(self, *, launcher: bool = False) -> object:
        """Equal at two moments between which the main thread began and ended nothing: the operation
        that it is in, as threads beside it may go on, else the journal's progress. A ``launcher``
        asks its store all the time, and stands still in its outermost operation or not at all."""
        in_flight = self.core.in_flight()
        for each in in_flight if launcher else reversed(in_flight):
            if b'"h":' not in self.core.begin_of(each):
                return each.n
        return object() if launcher else self.progress()

    def since(self, operation: Operation) -> int:
        return self.clock() - operation.begin

    def now(self) -> int:
        """Nanoseconds of the journal's clock."""
        return self.clock() - self.core.t0

    def recover(self, error: BaseException, line: bytes) -> None:
        """``put(line)`` raised ``error``: make room, open the next segment, or give up. A signal
        handler's exception goes on, though a time-out is an OSError. One that records while its
        thread makes room leaves its lines in ``_late``, for nothing half opened may be opened from
        within."""
        if not foreign.is_ours(error):
            raise error
        with patient(LOCK):
            if self._making_room:
                self._late.append(line)
                return
            self._making_room = True
            try:
                self._make_room(error, line)
                while self._late:
                    self._make_room(SegmentFull(), self._late.pop(0))
            except foreign.ours(ValueError, OSError) as final:
                self._fail(final)
            finally:
                self._making_room = False

    # -- definitions -------------------------------------------------------------------------

    def note(self, kind: str, /, **keys: Any) -> None:
        """Write a definition that has no number; ``t`` is added."""
        with patient(LOCK):
            self.write_definition({fmt.DEF: kind, "t": self.now(), **keys})

    # -- life --------------------------------------------------------------------------------

    def open(self) -> None:
        """Open the journal now instead of at the first record."""
        with patient(LOCK):
            if self._journal is None and not self.off:
                try:
                    self._open()
                except foreign.ours(OSError) as error:
                    self._fail(error)

    def check(self) -> None:
        """Notice files that were deleted or shortened under the journal."""
        with patient(LOCK):
            try:
                if self._journal is not None:
                    self._journal.check()
            except SegmentLost as lost:
                self.recover(lost, b"")
            except foreign.ours(OSError) as error:
                self._fail(error)

    def close(self) -> None:
        """Close the journal; whatever comes later is dropped."""
        self.core.notice_dropped()
        with patient(LOCK):
            journal, self._journal = self._journal, None
            self._switch_off()
            self.courses.stop()
            if journal is not None:
                attempt(journal.close)  # else nobody cuts the file: its tail of NULs is documented

    def after_fork(self, *, t0: int) -> None:
        """In a forked child: let go of the parent's journal and start anew, without one."""
        journal, self._journal = self._journal, None
        self.core.t0 = t0
        self._making_room = False
        self._opens = RLock()
        self._late.clear()
        self.courses.stop(forked=True)
        self.forget_definitions()
        self.core.forget()
        self.threads.state  # noqa: B018 - the forking thread is number 0
        self.main_ident = _main_ident()
        self.issuing = {self.main_ident}
        if not self.off:
            self.core.put = self._open_and_put
        if journal is not None:
            journal.abandon()

    # -- inside ------------------------------------------------------------------------------

    def _background(self, line: bytes) -> None:
        self._in_background += len(line)
        self.core.record(line)

    def write_definition(self, record: Mapping[str, Any]) -> int:
        if self.off:
            return 0
        try:
            if self._journal is None:
                self._open()
            assert self._journal is not None
            return self._journal.define(record)
        except foreign.ours(OSError) as error:
            self._fail(error)
            return 0

    def _open_and_put(self, line: bytes) -> None:
        with patient(LOCK):
            if self._journal is None and not self.off:
                self._open()
        self.core.record(line)

    def _open(self) -> None:
        with self._opens:
            if self._journal is not None:
                return
            journal = self._open_journal()
            self.bound = journal.most_definitions
            for record in (*self._opening(), *self.threads_seen):
                journal.define(record)
            self._journal = journal
            self._next_segment(journal)

    def _next_segment(self, journal: JournalWriter, *last: bytes) -> None:
        """Go on in the next segment, with the lines ``last`` as its first of ours."""
        number = journal.number + 1
        head = {"seg": number, "format": fmt.FORMAT, "process": self._process(), "t": self.now()}
        first = encode(head) + b"\n"

        def dropped(segment: int) -> None:
            journal.define({fmt.DEF: "dropped", "t": self.now(), "segment": segment})

        copies = [line[:-2] + b',"r":1}\n' for line in self.core.begins_in_flight()]
        journal.open_segment([first, *copies], dropped)
        self._in_background = 0
        self._publish(journal, last)

    def _make_room(self, error: BaseException, line: bytes) -> None:
        journal = self._journal
        if foreign.is_a(error, OSError) or journal is None:
            raise error
        try:
            if foreign.is_a(error, SegmentLost):
                raise error
            self.core.put(line)  # another thread may have made room meanwhile
        except SegmentLost as lost:
            self._lose(journal, lost, line)
        except foreign.ours(ValueError):
            try:
                journal.extend(len(line))
            except SegmentLost as lost:
                self._lose(journal, lost, line)
            except SegmentFull:
                self._next_segment(journal, line)
            else:
                self._publish(journal, (line,))

    def _lose(self, journal: JournalWriter, lost: SegmentLost, line: bytes) -> None:
        """Go on in the next segment: what is put into this one is not read."""
        why = str(lost)
        self._losses += bool(why)
        if self._losses > _LOSSES:
            raise OSError(why)
        self._next_segment(journal, line)
        if why:
            self._on_loss(why)

    def _publish(self, journal: JournalWriter, lines: Sequence[bytes]) -> None:
        """Let all threads put where there is room now. What made it necessary comes first: other
        threads take no lock, and may fill a window between any two steps."""
        for line in lines:
            journal.append(line)
        self.core.put = journal.put

    def _fail(self, error: BaseException) -> None:
        if not foreign.is_ours(error):
            raise error
        if not self.off:
            self._switch_off()
            self._on_failure(error)

    def _switch_off(self) -> None:
        self.off = self.core.off = True
        self.core.put = cores.discard

    def main_thread(self) -> int:
        """The number of the main thread, which a fork leaves with its parent's native id."""
        name, native = foreign.threads().get(self.main_ident, ("MainThread", None))
        if not os.path.exists(f"/proc/self/task/{native}"):
            native = os.getpid()  # the only thread of a new process
        return self.thread_number(self.main_ident, name, native)

    def _register_thread(self) -> int:
        self.check()  # one that blocks SIGBUS may not store into a mapping
        ident, native = get_ident(), get_native_id()
        self.issuing.add(ident)
        # `current_thread` would make one for a thread of C's, for all to see.
        name, _ = foreign.threads().get(ident, ("", None))
        return self.thread_number(ident, name, native)


def _main_ident() -> int:
    """Of the main thread; `threading` has a greenlet's there where a library brought those."""
    if get_native_id() == os.getpid():
        return get_ident()
    return threading.main_thread().ident or 0
