"""The hot path: numbers operations, interns what repeats, and puts begins and ends on record.

One recorder per process. A begin is in the journal before ``begin`` returns; nothing here holds a
tensor, a Work, a group, a store or a frame. The lock is held for a microsecond and never across a
call into c10d.
"""

from __future__ import annotations

import itertools
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from disttrace import errors
from disttrace.journal import format as fmt
from disttrace.journal.segment import SegmentFull
from disttrace.journal.writer import Journal, encode
from disttrace.recording.interning import Definitions
from disttrace.recording.operation import Call, Counter, Operation, Threads, ThreadState, json_text

_clock = time.perf_counter_ns

# What ``begin`` and the ends write, for doors whose flat path writes it itself. In the begins the
# number of the call is filled in once, the rest by every operation: its number, time, sequence
# number, and what its thread adds. More may follow the second before the brace.
FLAT_BEGIN = b'{"b":%%d,"t":%%d,"s":%d,"q":%%d%%b}\n'
FLAT_BEGIN_UNCOUNTED = b'{"b":%%d,"t":%%d,"s":%d%%b'
END_SYNCHRONOUS = b'{"e":%d,"d":%d,"u":%d}\n'
END = b'{"e":%d,"d":%d%b}\n'
END_SIZED = b'{"e":%d,"d":%d,"n":%d}\n'


class Recorder(Definitions):
    """Begins and ends of operations, definitions, and the journal they go to.

    ``process`` is the id of this process, which a fork changes. ``open_journal`` makes the journal
    when the first record comes; ``opening`` gives the records that it starts with. When writing
    fails, ``on_failure`` is called once and the recorder is off.
    """

    def __init__(
        self,
        *,
        t0: int,
        process: Callable[[], str],
        open_journal: Callable[[], Journal],
        opening: Callable[[], Sequence[Mapping[str, Any]]],
        on_failure: Callable[[BaseException], None],
    ) -> None:
        super().__init__()
        self.t0 = t0
        self.in_flight: dict[int, bytes] = {}
        self.off = False
        self._process = process
        self._open_journal = open_journal
        self._opening = opening
        self._on_failure = on_failure
        self._journal: Journal | None = None
        # Appends a line to the journal; another function after each roll and fork, so never kept.
        self.put: Callable[[bytes], object] = self._open_and_put
        self.ambient: Callable[[], bytes] | None = None  # further keys of every begin
        self.next_number = itertools.count(1).__next__
        self._making_room = False
        self._late: list[bytes] = []
        self._in_background = 0  # bytes of heartbeats and the like, in the current segment
        self._states: list[weakref.ref[ThreadState]] = []
        self.threads = Threads(self._register_thread)

    # -- operations --------------------------------------------------------------------------

    def begin(self, thread: ThreadState, call: Call, extra: bytes = b"") -> Operation:
        """Put the begin of one operation of ``call`` on record.

        ``extra`` holds further keys as JSON, each with a comma before it.
        """
        if self.ambient is not None:
            extra += self.ambient()
        n = self.next_number()
        counter = call.counter
        if counter is None:
            seq = 0
            begin = _clock()
            line = b'{"b":%d,"t":%d,"s":%d%b%b}\n' % (
                n,
                begin - self.t0,
                call.n,
                thread.tail,
                extra,
            )
        else:
            seq = counter.next()
            begin = _clock()
            line = b'{"b":%d,"t":%d,"s":%d,"q":%d%b%b}\n' % (
                n,
                begin - self.t0,
                call.n,
                seq,
                thread.tail,
                extra,
            )
        self.in_flight[n] = line
        try:
            self.put(line)
        except (ValueError, OSError) as error:
            self.recover(error, line)
        return Operation(n, begin, call, seq)

    def unfolded(self, thread: ThreadState, n: int) -> Operation:
        """The object of operation ``n``, which a door began on its flat path."""
        line = thread.line
        if line is None or thread.n != n:  # a signal handler came between, and set it aside
            return thread.take_back(n)
        operation = Operation(n, thread.begin, thread.call, thread.seq)
        operation.work = thread.work
        if thread.work:
            operation.issued = thread.issued
        self.in_flight[n] = line
        thread.line, thread.work = None, 0
        return operation

    def set_aside(self, thread: ThreadState) -> None:
        """Make room on the flat path: another operation begins before the one there is over."""
        thread.will_wait(self.unfolded(thread, thread.n))

    def end_synchronous(self, operation: Operation) -> None:
        """The wait that the public call did itself is over."""
        line = END_SYNCHRONOUS % (operation.n, _clock() - operation.begin, operation.issued)
        self.in_flight.pop(operation.n, None)
        try:
            self.put(line)
        except (ValueError, OSError) as error:
            self.recover(error, line)

    def issued(self, operation: Operation) -> None:
        """The call returned and the work goes on."""
        operation.issued = elapsed = _clock() - operation.begin
        line = b'{"i":%d,"d":%d}\n' % (operation.n, elapsed)
        try:  # not by ``_record``: a call more is felt here, and in the two below
            self.put(line)
        except (ValueError, OSError) as error:
            self.recover(error, line)

    def wait_begins(self, operation: Operation) -> None:
        """A wait for asynchronous work is about to enter C++."""
        line = b'{"w":%d,"d":%d}\n' % (operation.n, _clock() - operation.begin)
        try:
            self.put(line)
        except (ValueError, OSError) as error:
            self.recover(error, line)

    def end(self, operation: Operation, extra: bytes = b"") -> None:
        """The operation is over for this process."""
        line = END % (operation.n, _clock() - operation.begin, extra)
        self.in_flight.pop(operation.n, None)
        try:
            self.put(line)
        except (ValueError, OSError) as error:
            self.recover(error, line)

    def failed(self, operation: Operation, error: BaseException, *, on_issue: bool) -> None:
        """The user's call raised. One that raised on issue gives its sequence number back."""
        text = self.string(errors.first_line(error))
        counter = operation.call.counter
        if on_issue and counter is not None:
            counter.give_back(operation.seq)
        self.end(operation, b',"x":%d%b' % (text, b',"f":1' if on_issue else b""))

    def completed(
        self,
        operation: Operation,
        *,
        gap: int | None,
        duration: int | None = None,
        at: int | None = None,
    ) -> None:
        """The work was seen complete by somebody who does not wait for it.

        ``gap`` bounds the error of the observation, ``duration`` is the backend's own, ``at`` when
        it was seen if not now; all in ns, the last of the clock of begins.
        """
        extra = b"" if gap is None else b',"g":%d' % gap
        if duration is not None:
            extra += b',"z":%d' % duration
        self.in_flight.pop(operation.n, None)
        elapsed = (_clock() if at is None else at) - operation.begin
        self._record(b'{"c":%d,"d":%d%b}\n' % (operation.n, elapsed, extra))

    def lost(self, operation: Operation, *, asked: bool = False) -> None:
        """Its Work was dropped: nobody waited, and nobody will see it complete.

        ``asked``: the program did ask for completion in another form than a wait.
        """
        self.in_flight.pop(operation.n, None)
        extra = b',"o":1' if asked else b""
        self._record(b'{"l":%d,"d":%d%b}\n' % (operation.n, _clock() - operation.begin, extra))

    def asked(self, operation: Operation, how: str) -> None:
        """The program asked for completion in another form than a wait (``get_future``, ...)."""
        line = b'{"o":%d,"d":%d,"k":%b}\n'
        elapsed = _clock() - operation.begin
        self._record(line % (operation.n, elapsed, json_text(how)))

    def heartbeat(self) -> None:
        """Say that the interpreter still runs; nothing unless the journal is open."""
        if self._journal is not None:
            self._background(b'{"hb":%d}\n' % (_clock() - self.t0))

    def stands_at(self, thread_number: int, stack: int) -> None:
        """Say where a thread stands (stack 0: nowhere known)."""
        now = _clock() - self.t0
        self._background(b'{"at":%d,"h":%d,"k":%d}\n' % (now, thread_number, stack))

    def progress(self) -> tuple[int, int]:
        """Changes whenever an operation begins, goes on or ends; heartbeats do not count."""
        journal = self._journal
        if journal is None:
            return 0, 0
        segment, size = journal.position()
        return segment, size - self._in_background

    def since(self, operation: Operation) -> int:
        """Nanoseconds since its begin."""
        return _clock() - operation.begin

    def now(self) -> int:
        """Nanoseconds of the journal's clock."""
        return _clock() - self.t0

    def recover(self, error: BaseException, line: bytes) -> None:
        """``put(line)`` raised ``error``: make room or open the next segment; give up where that
        fails.

        A signal handler that records while its thread makes room leaves its lines in ``_late``: a
        window or a segment half opened is not to be opened by another from within.
        """
        with self.lock:
            if self._making_room:
                self._late.append(line)
                return
            self._making_room = True
            try:
                self._make_room(error, line)
                while self._late:
                    self._record_late(self._late.pop(0))
            except (ValueError, OSError) as final:
                self._fail(final)
            finally:
                self._making_room = False

    # -- definitions -------------------------------------------------------------------------

    def call(self, op: str, /, *, synchronous: bool, counter: Counter | None, **keys: Any) -> Call:
        """Define a call; keys that are None are left out."""
        keys = {key: value for key, value in keys.items() if value is not None}
        call = Call(self.define("call", op=op, **keys), op, synchronous, counter)
        call.group, call.tag = keys.get("group"), keys.get("tag")
        call.device_ends = fmt.ends_on_device(keys.get("backend"), keys.get("device"))
        if synchronous and counter is not None and not call.device_ends:
            call.flat = FLAT_BEGIN % call.n
        return call

    def note(self, kind: str, /, **keys: Any) -> None:
        """Write a definition that has no number; ``t`` is added."""
        with self.lock:
            self.write_definition({fmt.DEF: kind, "t": self.now(), **keys})

    # -- life --------------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        """Whether this process has a journal."""
        return self._journal is not None

    def open(self) -> None:
        """Open the journal now instead of at the first record."""
        with self.lock:
            if self._journal is None and not self.off:
                try:
                    self._open()
                except OSError as error:
                    self._fail(error)

    def check(self) -> None:
        """Notice a folder that was deleted under the journal."""
        with self.lock:
            if self._journal is not None and self._journal.vanished():
                self._fail(FileNotFoundError("its journal was deleted"))

    def close(self) -> None:
        """Close the journal; whatever comes later is dropped."""
        with self.lock:
            journal, self._journal = self._journal, None
            self._switch_off()
            if journal is not None:
                try:
                    journal.close()
                except OSError:
                    pass  # the file is cut by nobody then: its tail of NULs is documented

    def after_fork(self, *, t0: int) -> None:
        """In a forked child: let go of the parent's journal and start anew, without one."""
        journal, self._journal = self._journal, None
        self.t0 = t0
        self.lock = threading.RLock()
        self.in_flight.clear()
        self._making_room = False
        self._late.clear()
        self._states.clear()
        self.forget_definitions()
        self.threads.state = self._register_thread()
        if not self.off:
            self.put = self._open_and_put
        if journal is not None:
            journal.abandon()

    # -- inside ------------------------------------------------------------------------------

    def _record(self, line: bytes) -> None:
        try:
            self.put(line)
        except (ValueError, OSError) as error:
            self.recover(error, line)

    def _record_late(self, line: bytes) -> None:
        try:
            self.put(line)
        except (ValueError, OSError) as error:
            self._make_room(error, line)

    def _background(self, line: bytes) -> None:
        self._in_background += len(line)
        self._record(line)

    def write_definition(self, record: Mapping[str, Any]) -> None:
        if self.off:
            return
        try:
            if self._journal is None:
                self._open()
            assert self._journal is not None
            self._journal.define(record)
        except OSError as error:
            self._fail(error)

    def _open_and_put(self, line: bytes) -> None:
        with self.lock:
            if self._journal is None and not self.off:
                self._open()
        self.put(line)

    def _open(self) -> None:
        journal = self._open_journal()
        for record in (*self._opening(), *self.threads_seen):
            journal.define(record)
        self._journal = journal
        self._roll(journal)

    def _roll(self, journal: Journal) -> None:
        number = journal.number + 1
        head = {"seg": number, "format": fmt.FORMAT, "process": self._process(), "t": self.now()}
        first = encode(head) + b"\n"
        copies = [line[:-2] + b',"r":1}\n' for line in self._begins_in_flight()]
        dropped = journal.open_segment([first, *copies])
        self._in_background = 0
        self.put = journal.put
        if dropped is not None:
            journal.define({fmt.DEF: "dropped", "t": self.now(), "segment": dropped})
            journal.drop(dropped)

    def _make_room(self, error: BaseException, line: bytes) -> None:
        journal = self._journal
        if isinstance(error, OSError) or journal is None:
            raise error
        try:
            self.put(line)  # another thread may have made room meanwhile
        except ValueError:
            try:
                journal.extend(len(line))
            except SegmentFull:
                self._roll(journal)
            self.put = journal.put
            self.put(line)

    def _fail(self, error: BaseException) -> None:
        if not self.off:
            self._switch_off()
            self._on_failure(error)

    def _switch_off(self) -> None:
        self.off = True
        self.put = _discard

    def _begins_in_flight(self) -> list[bytes]:
        states = [state for state in [each() for each in self._states] if state is not None]
        flat = [line for line in [state.line for state in states] if line is not None]
        return [*list(self.in_flight.values()), *flat]

    def _register_thread(self) -> ThreadState:
        thread = threading.current_thread()
        native = threading.get_native_id()
        state = ThreadState(self.thread_number(threading.get_ident(), thread.name, native))
        with self.lock:
            alive = [each for each in self._states if each() is not None]
            self._states = [*alive, weakref.ref(state)]
        return state


def _discard(line: bytes) -> None:
    """Where records go when tracing is off."""
