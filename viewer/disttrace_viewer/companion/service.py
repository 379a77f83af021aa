"""The companion's life: its duties take turns until the registered processes of the job have ended.

The registry holds one line per journal (``proc.entry``) and is the lock of its exporter: a process
appends its line first and tries the lock then, the exporter lets go of the lock first and looks for
new lines then. So one of the two sees the other, always.
"""

from __future__ import annotations

import fcntl
import os
import queue
import stat
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from operator import methodcaller
from typing import Any

import disttrace.journal.format as fmt
from disttrace.journal.proc import Entry, entries
from disttrace.lifecycle.rendezvous_folder import namespace
from disttrace_viewer.load.problems import ViewerError
from disttrace_viewer.otlp.target import without_secrets
from disttrace_viewer.trace.values import dataclass


class JournalRegistry:
    """The file at ``path``, locked by the maker of ``descriptor``."""

    def __init__(self, path: str, descriptor: int) -> None:
        self.path = path
        self.entries: list[Entry] = []
        self.refused: list[str] = []
        """Names in the file that are not those of our journals, and not read."""
        self.owner = os.fstat(descriptor).st_uid
        self._fd = descriptor
        self._position = 0

    def poll(self) -> list[Entry]:
        """Processes that registered since the last time, and whose journals are ours."""
        data = os.pread(self._fd, 1 << 20, self._position)
        self._position += data.rfind(b"\n") + 1
        new = []
        for entry in entries(data):
            path = os.path.join(os.path.dirname(self.path), entry.base)
            if not fmt.is_plain_name(entry.base) or not fmt.is_own(
                fmt.definitions_name(path), self.owner
            ):
                self.refused.append(entry.base)
            else:
                new.append(entry)
        self.entries += new
        return new

    def release(self) -> bool:
        """Remove the file and release the lock; False if one registered meanwhile."""
        if self._unread():
            return False
        try:
            if os.lstat(self.path).st_ino == os.fstat(self._fd).st_ino:
                os.unlink(self.path)
        except OSError:
            pass  # the folder was deleted under us
        fcntl.flock(self._fd, fcntl.LOCK_UN)
        return not self._unread() or not self._again()

    def _unread(self) -> bool:
        return os.fstat(self._fd).st_size > self._position

    def _again(self) -> bool:
        """One registered while we let go: serve it, unless it started another companion."""
        late = os.pread(self._fd, 1 << 20, self._position)
        try:
            fresh = fmt.open_own(self.path, os.O_CREAT | os.O_RDWR | os.O_APPEND, self.owner)
        except OSError:
            return False  # something else is in its place: they cannot be served
        os.write(fresh, late)
        try:
            fcntl.flock(fresh, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(fresh)  # the other one reads on
            return False
        os.close(self._fd)
        self._fd, self._position = fresh, 0
        return True


SETTLED_S = 60.0
"""A roll to which one was added since is left alone: a job may just begin."""
_MOST, _MOST_BYTES = 1000, 1 << 20
"""Rolls that are looked at in one go."""


def sweep(folder: str) -> int:
    """Take away the rolls of this pid namespace none of whose processes lives, with the pages of
    their processes; how many."""
    removed = 0
    own = f"-{namespace()}{fmt.MEMBERS_SUFFIX}"
    try:
        names = [name for name in os.listdir(folder) if name.endswith(own)][:_MOST]
    except OSError:
        return 0
    for name in names:
        path = os.path.join(folder, name)
        with suppress(OSError):
            found = os.lstat(path)
            if time.time() - found.st_mtime < SETTLED_S or not stat.S_ISREG(found.st_mode):
                continue
            with fmt.opened_own(path, os.O_RDONLY) as fd:
                writers = [*entries(os.pread(fd, _MOST_BYTES, 0))]
            if any(one.lives for one in writers):
                continue
            journals = name.partition("-")[0]
            for base in {one.base for one in writers if fmt.is_plain_name(one.base)}:
                with suppress(FileNotFoundError):
                    os.unlink(os.path.join(folder, f"{journals}-{base}{fmt.CALLS_SUFFIX}"))
            os.unlink(path)
            removed += 1
    return removed


class CompanionLog:
    """Sentences for people, each once, in a file that is removed where it stayed empty."""

    def __init__(self, descriptor: int) -> None:
        self._fd = descriptor
        self._said: set[str] = set()

    def write(self, sentence: str) -> None:
        """Append a sentence; a full disk is no reason to stop."""
        sentence = without_secrets(sentence)
        if sentence not in self._said:
            self._said.add(sentence)
            try:
                os.write(self._fd, f"{sentence}\n".encode("utf-8", "replace"))
            except OSError:
                pass


POLL_S = 0.25
LINGER_S = 1.0
"""A job whose last process went may go on with the next one (a restart, a shell loop)."""
STAY_S, OF_LIMIT = 60.0, 2.0
"""So long, or so many times the limit, one whose processes failed stays for others to ask why."""
DIED_S = 3.0
"""For so long others wait for one that died when a job is ended by ``DISTTRACE_ON_STALL=abort``."""


def stay_s(stall_s: float) -> float:
    """Seconds that the companion of processes that failed stays at most."""
    return max(STAY_S, OF_LIMIT * stall_s)


@dataclass(frozen=True, slots=True)
class Order:
    """The request of the process that started the companion."""

    directory: str
    registry: str
    job: str
    in_names: str
    """With which the names of the job's files begin."""
    exports: bool
    pending_s: float
    keep: bool
    """Keep the journals (json) instead of deleting what was delivered or given up."""
    watches: bool
    stall_s: float
    quiet_since: int | None
    """``time.monotonic_ns`` since when nothing moved in that process; None: it has just begun."""
    cwd: str
    """Where that process was, for commands of the user; the companion itself is nowhere."""
    says: str
    """The file with what processes of this host are to print."""
    roll: str
    """The file in which processes of this host list their journals."""
    host: str
    """What follows ``in_names`` in those of this host; none: all that lie there are of it."""
    root: str
    """The folder of all journals: ``directory``, or what that of one job and host lies in."""
    slow: float
    """The share of their time from which ranks that make others wait are reported; 0: never."""

    @property
    def live(self) -> str:
        """The file in which processes of this host read what is known of their ranks."""
        return os.path.splitext(self.says)[0] + fmt.LIVE_SUFFIX


class Task:
    """One thing that the companion does, all of it on one thread; by itself nothing."""

    pause_s = POLL_S
    """Between two turns."""
    over = threading.Event()
    """Set when the job is over on this host."""

    def follow(self, base: str) -> None:
        """A process registered its journal."""

    def turn(self) -> None:
        """Again and again."""

    def ended(self, base: str) -> None:
        """The process of a journal is gone."""

    def finish(self) -> None:
        """The job is over on this host."""


class TaskThread:
    """The thread of a duty, which ``make`` gives there when the companion has run for a while."""

    def __init__(
        self,
        make: Callable[[], Task],
        log: CompanionLog,
        begin_s: float = 0.0,
        *,
        what: str = "a duty of the companion ended",
    ) -> None:
        """``what``: the sentence on its failure, whose text follows."""
        self.over = threading.Event()
        self.failed = False
        self._make, self._log, self._begin_s, self._what = make, log, begin_s, what
        self._news: queue.SimpleQueue[Callable[[Any], object]] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="duty", daemon=True)
        self._thread.start()

    def post(self, do: Callable[[Any], object]) -> None:
        """Have something done with the duty before its next turn."""
        self._news.put(do)

    def finish(self) -> None:
        """After ``over``: wait until it has done what it does then."""
        self._thread.join()

    def _run(self) -> None:
        try:
            if self.over.wait(self._begin_s):
                return
            made = self._make()
            made.over = self.over
            while True:
                over = self.over.is_set()
                while not self._news.empty():
                    self._news.get()(made)
                if over:
                    break
                made.turn()
                self.over.wait(made.pause_s)
            made.finish()
        except Exception as error:
            self.failed = True
            kind = "" if isinstance(error, ViewerError) else f"{type(error).__name__}: "
            self._log.write(f"{self._what}: {kind}{error}")


def serve(duties: Sequence[TaskThread], registry: JournalRegistry, log: CompanionLog) -> None:
    """Until the last process of the job is gone; a duty that fails ends, the others go on."""

    def post(what: str, base: str) -> None:
        for duty in duties:
            duty.post(methodcaller(what, base))

    ended: set[str] = set()
    last_alive = time.monotonic()
    while not all(duty.failed for duty in duties):
        for entry in registry.poll():
            post("follow", entry.base)
        for name in registry.refused:
            log.write(f"{name[:80]!r} is no journal of this user here; it is not read")
        if os.getppid() in [entry.pid for entry in registry.entries]:
            # It may wait until it has no child, and we wait for it.
            log.write("no companion: it would be a child of a process of the job")
            break
        gone = {entry.base for entry in registry.entries if not entry.lives}
        for base in gone - ended:
            post("ended", base)
        ended |= gone
        if any(entry.base not in gone for entry in registry.entries):
            last_alive = time.monotonic()
        elif time.monotonic() - last_alive > LINGER_S and registry.release():
            break
        time.sleep(POLL_S)
    for duty in duties:
        duty.over.set()
    for duty in duties:
        duty.finish()
