"""The background thread of a traced process, from the journal's first record to the exit.

It owns nothing of the program's while it sleeps, and it is joined before the interpreter
finalizes: a thread that lets go of a frame or a process group after that aborts the program.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from disttrace.capture.wrapping.context import Capture
from disttrace.foreign import ours
from disttrace.identity import ClockAnchor, Identity
from disttrace.journal.format import CALLS_SUFFIX, HEARTBEAT_NS, is_plain_name, opened_own
from disttrace.journal.originals import Empty, SimpleQueue, get_ident
from disttrace.lifecycle.companion import MemberList
from disttrace.lifecycle.gil_free_stacks import GilFreeStacks
from disttrace.lifecycle.stack_sampler import Stacks
from disttrace.recording import background, shown
from disttrace.recording.background import SOON_NS
from disttrace.recording.newest_calls import Courses

PART = "heartbeats and stacks"
NAME = "disttrace-live"

LOOK_NS = 1_000_000_000
"""How often the thread looks whether anything begins or ends."""

_NS = 1_000_000_000
_ANCHOR_NS = 30 * _NS
_UNTIL_WOKEN_NS = 3600 * _NS
_IDLE_NS = 250_000_000  # while nothing is, for those who do not wake us
_JOIN = 1.0  # seconds; a write that blocks for longer than that must not hold up the program

_clock = time.perf_counter_ns


@dataclass(slots=True)
class Periodic:
    """What the thread does each ``pause_ns()``, called with its clock, until it raises."""

    part: str
    look: Callable[[int], object]
    pause_ns: Callable[[], int] = lambda: LOOK_NS
    due: int = 0


class Live:
    """The thread and its timetable. ``beats`` is off where only the pollers need it; ``further``
    are what else it does, and ``without_gil`` has a thread of its own to be paused around forks.
    """

    def __init__(
        self,
        capture: Capture,
        *,
        beats: bool,
        further: Sequence[Periodic] = (),
        without_gil: GilFreeStacks | None = None,
    ) -> None:
        self._capture = capture
        self._without_gil = without_gil or GilFreeStacks(capture)
        self._beats = beats
        own = (
            Periodic(PART, lambda now: capture.recorder.check()),
            Periodic(PART, lambda now: self._stacks.look(now), lambda: self._stacks.pause_ns),
            Periodic(PART, self._beat, lambda: HEARTBEAT_NS),
        )
        self._tasks = [*own, *further] if beats else []
        self._thread: background.Thread | None = None
        self._process = 0
        self._fresh()

    _wake: SimpleQueue[None]
    _stacks: Stacks
    _paused: bool

    def start(self) -> None:
        """Run from now on; nothing if it runs, or if it is not needed."""
        if self._thread is not None or not (self._beats or self._capture.pollers):
            return
        self._stopping = False
        self._process = os.getpid()
        self._thread = thread = background.Thread(self._run, NAME)
        if not thread.start():
            self._thread = None

    def stop(self) -> None:
        """End the thread and wait for it."""
        thread = self._thread
        # In a child that a library forked there is no such thread to wait for.
        if thread is not None and os.getpid() == self._process:
            self._stopping = True
            self._wake.put(None)
            if thread.ident not in (None, get_ident()):
                thread.join(_JOIN)
        self._thread = None

    def wake(self) -> None:
        """Something is pending from now on: look often until it is over."""
        core = self._capture.recorder.core
        if core.idle:
            core.idle = False
            self._wake.put(None)
            if self._thread is None and not self._beats:
                self.start()

    def before_fork(self) -> None:
        """A copy must not hold half of what the thread was doing, nor warn that it has threads."""
        self._paused = self._paused or self._thread is not None
        self.stop()
        self._without_gil.pause()

    def after_fork(self) -> None:
        if self._paused:
            if self._thread is None:
                self._wake = SimpleQueue()
            self.start()
            self._paused = False
        self._without_gil.resume()

    def in_child(self) -> None:
        """In a forked child: the thread stayed behind; one of its own comes with the journal."""
        self._without_gil.stop()
        self._fresh()

    def _fresh(self) -> None:
        self._thread = None
        # Put from inside the program's calls: it is C's, so torch.compile sees no frame of it.
        self._wake = SimpleQueue()
        self._stopping = False
        self._paused = False
        self._capture.recorder.core.idle = True
        for task in self._tasks:
            task.due = 0
        self._anchor_due = _clock() + _ANCHOR_NS  # the journal's first line holds one
        self._stacks = Stacks(self._capture)

    def sample(self) -> None:
        """Note where every thread of this process is."""
        self._stacks.take()

    def _run(self) -> None:
        me = get_ident()
        try:
            # One whose start was interrupted may come late, and there is another by then.
            while self._is_now(me) and not (self._stopping or self._capture.recorder.off):
                self._sleep(self._turn() / _NS)
        except BaseException as error:
            try:
                self._capture.fail(PART, error)
            except BaseException:  # not ours, and no program's either: it cannot be reported
                return

    def _is_now(self, ident: int) -> bool:
        thread = self._thread
        return thread is not None and thread.ident == ident

    def _sleep(self, seconds: float) -> None:
        try:
            self._wake.get(timeout=seconds)
            # A look at once would find little complete, and come after every single operation.
            while not self._stopping:
                self._wake.get(timeout=SOON_NS / _NS)
        except ours(Empty):
            return

    def _turn(self) -> int:
        """Do what is due; nanoseconds until the next turn."""
        core = self._capture.recorder.core
        core.idle = True  # a thread that begins something while we look must wake us
        pause = self._poll()
        if 0 < pause <= SOON_NS:
            core.idle = False
        now = _clock()
        for task in [one for one in self._tasks if now >= one.due]:
            try:
                task.look(now)
                task.due = now + task.pause_ns()
            except BaseException as error:
                self._tasks.remove(task)
                self._capture.fail(task.part, error)
        if 0 < pause <= SOON_NS:
            return pause
        rest = max(min(one.due for one in self._tasks) - now, 0) if self._tasks else _UNTIL_WOKEN_NS
        return min(rest, pause or _IDLE_NS, _IDLE_NS) if self._capture.pollers else rest

    def _poll(self) -> int:
        pauses = []
        for poll in list(self._capture.pollers):
            try:
                pauses.append(poll())
            except BaseException as error:
                self._capture.pollers.remove(poll)
                self._capture.fail(f"{PART} ({getattr(poll, '__qualname__', 'a poller')})", error)
        return min(filter(None, pauses), default=0)

    def _beat(self, now: int) -> None:
        recorder = self._capture.recorder
        recorder.heartbeat()
        if now >= self._anchor_due:
            self._anchor_due = now + _ANCHOR_NS
            clock = ClockAnchor()
            recorder.note(
                "clock",
                t=clock.mono_ns - recorder.core.t0,
                unix_ns=clock.unix_ns,
                error_ns=clock.error_ns,
            )


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


COMPARE_NS = 450_000_000


class InStep:
    """Whether the ranks of this host call the same things under the same numbers: each compares
    itself with the first one, by the pages of ``recording/newest_calls.py``. A difference is a
    suspicion, which the companion judges from the journals; one that leads to nothing is taken for
    a habit after some times."""

    def __init__(self, courses: Courses, root: str, suspect: Callable[[], None]) -> None:
        """``root``: the folder of all journals; ``suspect`` has the companion judge."""
        self._courses = courses
        self._suspect = suspect
        self._members = MemberList(root)
        self._streams: dict[tuple[str, int], shown.Compared] = {}
        self._identity: Identity | None = None

    def start(self, identity: Identity) -> None:
        """There is a journal from now on. Raises OSError."""
        self._identity = identity
        self._streams.clear()
        self._courses.start(self._path(identity, identity.base_name()))

    def look(self, _: int) -> None:
        """Each ``COMPARE_NS``, from the background thread. Raises OSError."""
        words, identity = self._courses.words, self._identity
        if words is None or identity is None:
            return
        mine = {
            words[shown.FIRST_ID + stream]: shown.offset(stream)
            for stream in range(words[shown.COUNT])
        }
        own = identity.base_name()
        found = False
        for base in self._members.first(identity):
            if base == own or not mine:
                break  # those that come later look at us
            if is_plain_name(base):
                found = self._beside(self._path(identity, base), mine, words) or found
        if found:
            self._suspect()

    def _path(self, identity: Identity, base: str) -> str:
        return f"{self._members.place(identity)}{base}{CALLS_SUFFIX}"

    def _beside(self, path: str, mine: dict[int, int], words: memoryview) -> bool:
        """Compare what one other process shows; what it has of ours is done with then."""
        found = False
        try:
            with opened_own(path, os.O_RDONLY) as fd:
                for name, there in shown.streams(fd):
                    at = mine.pop(name, None)
                    if at is not None:
                        known = self._streams.setdefault((path, name), shown.Compared())
                        own = words[at // shown.WORD : (at + shown.STREAM_BYTES) // shown.WORD]
                        found = _compared(known, own, fd, there) or found
        except ours(OSError):
            return found  # it shows nothing
        return found


def _compared(known: shown.Compared, own: memoryview, fd: int, at: int) -> bool:
    newest = (own[shown.NEWEST], shown.newest(fd, at))
    if newest == known.newest and not known.asked:
        return False
    known.newest = newest
    ours = shown.Page(memoryview(own.tobytes()).cast("Q"))
    return known.suspicious(ours, shown.read(fd, at))
