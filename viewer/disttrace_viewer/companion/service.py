"""The companion's life: its duties take turns until the processes of the job on this host end."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from disttrace.journal.format import LIVE_SUFFIX
from disttrace_viewer.companion.registry import JournalRegistry
from disttrace_viewer.otlp.target import without_secrets


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
BEGIN_S, SOON_S = 10.0, 1.0
"""``Later``: where a stall had the companion started, and where none had."""
STAY_S, OF_LIMIT = 60.0, 2.0
"""So long, or so many times the limit, one whose processes failed stays for other hosts to ask
why, while the job's store is there.
"""
DIED_S = 3.0
"""For so long others wait for one that died when a job is ended that asked for it."""


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
    cwd: str = "/"
    """Where that process was, for commands of the user; the companion itself is nowhere."""
    says: str = ""
    """The file with what processes of this host are to print; none: beside the registry."""
    roll: str = ""
    """The file in which processes of this host list their journals; none: not known."""
    host: str = ""
    """What follows ``in_names`` in those of this host; none: all that lie there are of it."""
    root: str = ""
    """The folder of all journals, below which ``directory`` is that of one job and host, or which
    it is itself; none: it is."""
    slow: float = 0.0
    """The share of their time from which ranks that make others wait are reported; 0: never."""

    @property
    def live(self) -> str:
        """The file in which processes of this host read what is known of their ranks."""
        return os.path.splitext(self.says or self.registry)[0] + LIVE_SUFFIX


class Duty:
    """One thing that the companion does; by itself nothing."""

    def follow(self, base: str) -> None:
        """A process registered its journal."""

    def inherit(self, base: str) -> None:
        """An earlier companion was killed and left the journal of a process that has ended."""

    def turn(self) -> None:
        """Four times a second."""

    def ended(self, base: str) -> None:
        """The process of a journal is gone; called at each turn."""

    def finish(self) -> None:
        """The job is over on this host."""


class Later(Duty):
    """A duty that begins when the companion has run for a while, and is imported then: what
    ``make`` gives, once it is there. Where a stall had the companion started, the first seconds are
    the verdict's.
    """

    def __init__(self, make: Callable[[], Duty], begin_s: float = BEGIN_S) -> None:
        self._make = make
        self._made: Duty | None = None
        self._failed: Exception | None = None
        self._bases: dict[str, None] = {}
        self._due = time.monotonic() + begin_s
        self._thread = threading.Thread(target=self._begin, name="later", daemon=True)

    def follow(self, base: str) -> None:
        self._bases[base] = None
        if self._made is not None:
            self._made.follow(base)

    def turn(self) -> None:
        """Make it when it is due, on a thread: to import takes its time."""
        if self._failed is not None:
            raise self._failed
        if self._made is not None:
            self._made.turn()
        elif self._thread.ident is None and time.monotonic() >= self._due:
            self._thread.start()
        elif self._thread.ident is not None and not self._thread.is_alive():
            self._made = self._duty
            for base in self._bases:
                self._made.follow(base)

    def ended(self, base: str) -> None:
        self._bases.pop(base, None)
        if self._made is not None:
            self._made.ended(base)

    def finish(self) -> None:
        if self._made is not None:
            self._made.finish()

    def _begin(self) -> None:
        try:
            self._duty = self._make()
        except Exception as error:
            self._failed = error


def serve(duties: Sequence[Duty], registry: JournalRegistry, log: CompanionLog) -> None:
    """Until the last process of the job is gone; a duty that fails ends, the others go on."""
    working = list(duties)

    def each(do: Callable[[Duty], None]) -> None:
        for duty in list(working):
            try:
                do(duty)
            except Exception as error:
                working.remove(duty)
                log.write(f"{type(duty).__name__.lower()} ended: {type(error).__name__}: {error}")

    last_alive = time.monotonic()
    while working:
        for entry in registry.poll():
            each(lambda duty, base=entry.base: duty.follow(base))  # type: ignore[misc]
        for base in registry.inherited:
            each(lambda duty, base=base: duty.inherit(base))  # type: ignore[misc]
        registry.inherited.clear()
        for name in registry.refused:
            log.write(f"{name[:80]!r} is no journal of this user here; it is not read")
        if os.getppid() in [entry.pid for entry in registry.entries]:
            # It may wait until it has no child, and we wait for it.
            log.write("nobody watches: the companion would be a child of a process of the job")
            break
        gone = [entry for entry in registry.entries if not entry.lives]
        each(lambda duty: duty.turn())
        for entry in gone:
            each(lambda duty, base=entry.base: duty.ended(base))  # type: ignore[misc]
        if len(gone) < len(registry.entries):
            last_alive = time.monotonic()
        elif time.monotonic() - last_alive > LINGER_S and registry.release():
            break
        time.sleep(POLL_S)
    each(lambda duty: duty.finish())
