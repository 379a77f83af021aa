"""The two cores: what numbers an operation and puts its records into the journal.

The plain one is the reference, in ordinary functions. The native one (``_fast.c``) does the same,
byte for byte, and the wrappers' work too. A process has one of them, chosen when tracing starts.
"""

from __future__ import annotations

import functools
import itertools
import time
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

from disttrace import foreign
from disttrace.journal import compiled
from disttrace.journal import format as fmt
from disttrace.recording.operation import CallRecord, Counter, Operation, Threads, ThreadState

NATIVE, PLAIN = "c", "python"
NAMES = (NATIVE, PLAIN)


def native() -> Any:
    """The module of the native core. Raises ImportError where there is none that fits."""
    return compiled.load("recording._fast")


def choose(name: str | None) -> tuple[str, str]:
    """Which core a process gets that asks for ``name`` (None: the faster), and why."""
    if name == PLAIN:
        return PLAIN, "asked for"
    try:
        native()
    except foreign.ours(ModuleNotFoundError):
        return PLAIN, "the native one was not built"
    except foreign.ours(ImportError) as error:
        return PLAIN, f"it cannot be loaded: {foreign.text_of(error)}"
    return NATIVE, "asked for" if name == NATIVE else "built"


def take_out(table: dict[int, Operation], key: int, operation: Operation) -> bool:
    """Whether ``operation`` stood there; of two threads that take it out, one finds it."""
    if table.get(key) is not operation:
        return False
    taken = table.pop(key, None)
    if taken is not None and taken is not operation:  # another came to that address meanwhile
        table[key] = taken
    return taken is operation


class PlainCore:
    """Begins and ends. ``recover(error, line)`` is called where ``put(line)`` raises."""

    recover: Callable[[BaseException, bytes], None]
    put: Callable[[bytes], object]  # appends a line to the journal
    threads: Threads
    name = PLAIN
    new_counter = Counter
    new_call = CallRecord
    new_thread = ThreadState

    def __init__(self) -> None:
        self.t0 = 0
        self.clock: Callable[[], int] = time.perf_counter_ns
        self.ambient: Callable[[], bytes] | None = None  # further keys of every begin
        self.off = False  # every call passes as it is
        self.begun = 0  # operations but those of stores: who polls begins such all the time
        self.works: dict[int, Operation] = {}  # by id() of the Work that ends them
        self.open: dict[int, Operation] = {}  # those of them not seen complete yet
        self.results: dict[int, Operation] = {}  # by the storage of a result
        self.groups = 0  # how many have been made
        self.deferring: type | None = None  # torch's tensors that wait when they are used
        self.wake: Callable[[], None] = lambda: None  # something is open from now on
        self.idle = True  # the background thread was not woken since its last look
        # Nobody holds its Work any more.
        self.dropped: Callable[[Operation], None] = lambda operation: None
        # The native core tells it what a device will end; None: parts of Python's do, see Works.
        self.enqueued: Callable[[Operation, None, Any], None] | None = None
        self._fallen: deque[_Reference] = deque()  # their Work is gone, and no one has seen to it
        self._in_flight: dict[int, Operation] = {}
        self._number = itertools.count(1).__next__

    def begin(self, thread: ThreadState, call: CallRecord, extra: bytes = b"") -> Operation:
        """Put a begin on record; ``extra``: further keys as JSON, each after a comma."""
        if self._fallen:
            self.notice_dropped()
        if self.ambient is not None:
            extra += self.ambient()
        if not call.asks:
            self.begun += 1  # two threads may count one: what counts is that it changes
        number, counter, clock, seq = self._number, call.counter, self.clock, 0
        n, s, tail = number(), call.n, thread.tail
        if counter is None:
            begin = clock()
            line = fmt.BEGIN_UNCOUNTED_LINE % (n, begin - self.t0, s, tail, extra)
        else:
            count = counter.next
            seq, begin = count(), clock()
            line = fmt.BEGIN_LINE % (n, begin - self.t0, s, seq, tail, extra)
        operation = Operation()
        operation.n = n
        operation.begin = begin
        operation.call = call
        operation.seq = seq
        operation.line = line
        self._in_flight[n] = operation
        put = self.put
        try:
            put(line)
        except BaseException as error:
            self._not_put(operation, error)
        return operation

    def _not_put(self, operation: Operation, error: BaseException) -> None:
        """Recover, or let go of an operation that will have no end."""
        recovered = False
        try:
            if foreign.is_a(error, (ValueError, OSError)) and foreign.is_ours(error):
                self.recover(error, operation.line)
                recovered = True
        finally:
            if not recovered:
                self.over(operation)
        if not recovered:
            raise error

    def issued(self, operation: Operation) -> None:
        operation.issued = elapsed = self.clock() - operation.begin
        self.record(fmt.ISSUED_LINE % (operation.n, elapsed))

    def wait_begins(self, operation: Operation) -> None:
        """A wait for asynchronous work is about to enter C++."""
        if self._fallen:
            self.notice_dropped()
        self.record(fmt.WAIT_LINE % (operation.n, self.clock() - operation.begin))

    def end(self, operation: Operation, extra: bytes = b"") -> None:
        """The operation is over for this process."""
        n, clock = operation.n, self.clock
        operation.ended = True  # as ``over`` and ``record``: calls cost as much as what they do
        self._in_flight.pop(n, None)
        line = fmt.END_LINE % (n, clock() - operation.begin, extra)
        try:
            self.put(line)
        except foreign.ours(ValueError, OSError) as error:
            self.recover(error, line)

    def end_synchronous(self, operation: Operation) -> None:
        """The wait that the public call did itself is over."""
        n, clock = operation.n, self.clock
        operation.ended = True
        self._in_flight.pop(n, None)
        line = fmt.END_SYNCHRONOUS_LINE % (n, clock() - operation.begin, operation.issued)
        try:
            self.put(line)
        except foreign.ours(ValueError, OSError) as error:
            self.recover(error, line)

    def lost(self, operation: Operation, extra: bytes = b"") -> None:
        """Nobody will see it complete."""
        self.over(operation)
        self.record(fmt.LOST_LINE % (operation.n, self.clock() - operation.begin, extra))

    def completed(self, operations: list[Operation], at: int) -> None:
        """Those that are not over were seen complete at ``at``, and had not been polled before."""
        for each in operations:
            if not each.ended:
                elapsed = at - each.begin
                self.over(each)
                gap = max(0, elapsed - each.issued)
                self.record(fmt.COMPLETE_LINE % (each.n, elapsed, gap, b""))

    def over(self, operation: Operation) -> None:
        """From here on new segments do not repeat its begin."""
        operation.ended = True
        self._in_flight.pop(operation.n, None)

    def record(self, line: bytes) -> None:
        try:
            self.put(line)
        except foreign.ours(ValueError, OSError) as error:
            self.recover(error, line)

    def begins_in_flight(self) -> list[bytes]:
        return [self.begin_of(operation) for operation in self.in_flight()]

    def begin_of(self, operation: Operation) -> bytes:
        return operation.line

    def in_flight(self) -> list[Operation]:
        """Operations that are not over, oldest first."""
        return list(self._in_flight.values())

    def follow(self, operation: Operation, work: Any) -> None:
        """``work`` ends ``operation``. Raises TypeError where it has no weak references."""
        if self._fallen:
            self.notice_dropped()  # one may have had that address
        # C alone runs where the last reference to a Work is dropped. From there no exception can
        # leave, and between two lines of Python's a signal handler may raise one.
        operation.reference = reference = _Reference(work, self._fallen.append)
        reference.operation = operation
        operation.work = id(work)
        self.works[operation.work] = operation

    def followed(self, work: Any) -> Operation | None:
        """The operation that ``work`` ends, if it is not over."""
        operation = self.works.get(id(work))
        if operation is None or operation.reference is None or operation.reference() is not work:
            return None
        return operation

    def unfollow(self, operation: Operation, *, take_out: Callable[..., bool] = take_out) -> None:
        """Nothing more is expected of its Work: also when globals are gone as the program ends."""
        operation.reference = None
        take_out(self.works, operation.work, operation)
        take_out(self.open, operation.work, operation)

    def let_go(self) -> None:
        """Of what is in flight: it will not end here."""
        for operation in self.in_flight():
            self.over(operation)
        while self.next_dropped() is not None:
            pass
        for operation in list(self.works.values()):
            operation.reference = None  # a Work that the program keeps would keep all of us
        self.works.clear()
        self.open.clear()

    def forget(self) -> None:
        """After fork, in the child: threads, and what is in flight, are the parent's."""
        self.let_go()
        self.threads.forget()

    def next_dropped(self) -> Operation | None:
        """Take one of the operations whose Work is gone, oldest first."""
        while self._fallen:
            reference = self._fallen.popleft()
            operation = reference.operation
            if operation.reference is reference:
                operation.reference = None
                return operation
        return None

    def notice_dropped(self) -> None:
        """See to the operations whose Work is gone; called where exceptions can leave."""
        while (operation := self.next_dropped()) is not None:
            self.dropped(operation)


class _Reference(weakref.ref[Any]):
    """To a Work, and its operation."""

    __slots__ = ("operation",)
    operation: Operation


def discard(line: bytes) -> None:
    """Where records go when tracing is off."""


def make(
    name: str, recover: Callable[[BaseException, bytes], None], register: Callable[[], int]
) -> PlainCore:
    """A core of either kind; ``register`` gives the number of a new thread."""
    core: PlainCore = PlainCore() if name == PLAIN else _native_core()(PIECES)
    core.put, core.recover = discard, recover
    core.threads = Threads(lambda: core.new_thread(register()))
    return core


# What may come after a begin, by its number in C.
_EVENTS = {"issued": 2, "wait_begins": 3, "end": 4, "end_synchronous": 5, "lost": 6, "over": 8}

# The records cut where a number stands; before the last piece of each come further keys.
PIECES = tuple(
    piece
    for template in (
        fmt.BEGIN_LINE,
        fmt.BEGIN_UNCOUNTED_LINE,
        fmt.ISSUED_LINE,
        fmt.WAIT_LINE,
        fmt.END_LINE,
        fmt.END_SYNCHRONOUS_LINE,
        fmt.LOST_LINE,
        fmt.COMPLETE_LINE,
    )
    for piece in template.replace(b"%b", b"").split(b"%d")
)


@functools.cache
def _native_core() -> Any:
    """The class of the native core: its types, and in Python what need not be fast."""
    fast = native()
    base: Any = fast.Core
    numbered: Any = fast.Call
    of_thread: Any = fast.ThreadState
    for name in ("asked", "seen"):  # unless an operation has its own
        setattr(fast.Operation, name, getattr(Operation, name))
    fast.Operation.more, fast.Operation.held = (), False

    class NativeCounter(numbered):
        """Counts as ``Counter``; C counts by itself."""

        __slots__ = ()

        def next(self) -> int:
            self.n += 1
            return int(self.n)

        def give_back(self, number: int) -> None:
            if self.n == number:
                self.n -= 1

    class NativeCall(numbered):
        """A ``CallRecord``, of which C knows what it looks at."""

        __slots__ = ("group", "op", "store", "tag")
        __init__ = CallRecord.__init__

    class NativeThread(of_thread):
        """A ``ThreadState``, of which C knows what it looks at."""

        __slots__ = ()
        __init__ = ThreadState.__init__

    class NativeCore(base):
        """Begins and ends of operations, as ``PlainCore``."""

        name = NATIVE
        new_window, new_counter, method = fast.Window, NativeCounter, fast.Method
        new_call, new_thread, option = NativeCall, NativeThread, fast.Option
        followed, unfollow, record = PlainCore.followed, PlainCore.unfollow, PlainCore.record
        notice_dropped = PlainCore.notice_dropped
        let_go, begins_in_flight = PlainCore.let_go, PlainCore.begins_in_flight

        def __init__(self, pieces: tuple[bytes, ...]) -> None:
            self.idle = True
            for event, kind in _EVENTS.items():
                setattr(self, event, functools.partial(self.event, kind))

        def begin_of(self: Any, operation: Any) -> bytes:
            return bytes(operation.line, "utf-8")

        def forget(self: Any) -> None:
            self.forget_calls()
            PlainCore.forget(self)

        def follow(self: Any, operation: Any, work: Any) -> None:
            """``work`` ends ``operation``, which is called where no reference to it is left."""
            self.notice_dropped()
            operation.reference = weakref.ref(work, operation)
            operation.work = id(work)
            self.works[operation.work] = operation

    return NativeCore
