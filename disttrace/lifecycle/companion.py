"""Starts the process beside the job, which exports and watches; imports nothing of it.

gRPC in a traced process and a forking DataLoader end in a segmentation fault, a dead collector
delays exit by seconds, and a verdict takes memory and time that are the program's: so all of this
happens in one process per job and host. Where something is exported, the first process that has a
journal starts it; else the first one in which nothing has moved for a while, and a rank that is
alone on its host soon, for nobody else could. The program sees nothing of it: ``detached``.

Names of its lock and log can be foretold, where others may be able to write: see ``open_own``.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import os
from collections.abc import Callable, Iterator
from typing import Any

from disttrace import foreign
from disttrace.config import Config
from disttrace.identity import DRAWN, Identity, file_part, integer, working_directory
from disttrace.journal import format as fmt
from disttrace.journal import proc
from disttrace.journal.descriptors import attempt
from disttrace.journal.format import opened_own
from disttrace.lifecycle import detached
from disttrace.lifecycle.rendezvous_folder import namespace, place

_MAIN = "disttrace_viewer.companion.__main__"
_REGISTRY = ".otlp"
_BARE = "bare"
_LONGEST_LIST = 1 << 20
_LONGEST_WORDS = 4000
_TRIES = 5
_ON_STALL = "DISTTRACE_ON_STALL"

Report = Callable[[str, str], bool]


class Companion:
    """This process's part in it: it registers its journal, and starts the companion once."""

    def __init__(self, config: Config, report: Report) -> None:
        """``report`` (part, sentence) prints it once."""
        self._config = config
        self._say = report
        self._log: str | None = None
        self._owner = 0
        self._adopter = detached.Adopter(config.dir)
        self._members = MemberList(config.dir)

    @property
    def exports(self) -> bool:
        """Whether it is needed from the first record on."""
        return "otlp" in self._config.export

    def tells_slow(self, _: Identity) -> bool:
        """Whether slow ranks are reported, so that a healthy job has a companion too."""
        return self._config.slow > 0 and detached.refusal() is None

    def compares(self, identity: Identity) -> bool:
        """Whether hosts tell each other what they call, so that a job that is well has one soon."""
        named = identity.job_source != DRAWN
        return named and self.has_other_hosts(identity) and detached.refusal() is None

    @property
    def _lost(self) -> str:
        """What there is not without a companion."""
        return "nothing is exported by otlp" if self.exports else "no stall is reported"

    def announcements(self, identity: Identity) -> str:
        """The file in which the companion asks a process of the job to speak for it."""
        where = place(identity.folder(self._config.dir))
        return f"{where}{_group_of(identity)}{fmt.ANNOUNCEMENTS_SUFFIX}"

    def live(self, identity: Identity) -> str:
        """The file in which the companion writes what it knows of the ranks of this host."""
        return os.path.splitext(self.announcements(identity))[0] + fmt.LIVE_SUFFIX

    def enter(self, identity: Identity) -> None:
        """There is a journal from now on; others on this host can see that."""
        # A rank of which no launcher tells how many are on its host.
        bare = _number("WORLD_SIZE") > 1 and not _number("LOCAL_WORLD_SIZE")
        # What cannot be counted is not: a rank may take itself for alone, and have a companion.
        foreign.attempt(self._members.enter, identity, bare)

    def start(self, identity: Identity, *, quiet_since: int | None = None) -> None:
        """Register the journal; start the companion unless there is one. ``quiet_since``: nothing
        has moved since (``time.monotonic_ns``). Without a companion the program goes on."""
        path = os.path.join(identity.folder(self._config.dir), f"{_group_of(identity)}{_REGISTRY}")
        try:
            owner = self._owner = self._owner_of(identity)
            line = proc.entry(identity.base_name())
            order = self._order(path, identity, quiet_since)
            starter = detached.first_adopter(self._config.dir, owner)
            by_us = starter in (None, os.getpid())
            on_stall = self._config.on_stall or ""
            with _registered(path, line, owner) as descriptor:
                if descriptor is not None and by_us:
                    self._spawn(order, on_stall, descriptor, kept=starter is not None)
            if descriptor is not None:
                self._log = _log_of(path)
                if starter is not None and not by_us:
                    with_command = {**order, _ON_STALL: on_stall}
                    detached.ask_adopter(self._config.dir, starter, with_command, owner)
            atexit.register(self._tell)
        except foreign.ours(OSError, ValueError, RuntimeError) as error:
            self._say("companion", f"{self._lost}: {foreign.text_of(error)}; the program goes on")

    def look(self, identity: Identity) -> None:
        """Now and then: start those that others ask for, where this process would adopt them."""
        try:
            for order in self._adopter.look(lambda: self._owner_of(identity)):
                path, on_stall = str(order.get("registry")), str(order.pop(_ON_STALL, ""))
                if path.endswith(_REGISTRY) and self._is_below(path):
                    self._owner = self._owner_of(identity)
                    with _registered(path, b"", self._owner) as descriptor:
                        if descriptor is not None:
                            self._spawn(order, on_stall, descriptor, kept=True)
        except foreign.ours(OSError, RuntimeError) as error:
            self._say("companion", f"{self._lost}: {foreign.text_of(error)}; the program goes on")

    def _is_below(self, path: str) -> bool:
        """Whether a file lies where journals do: in the folder of all, or of one job and host."""
        root = os.path.join(self._config.dir, "")
        names = path.removeprefix(root).split(os.sep)
        return path.startswith(root) and len(names) in (1, 3) and all(map(fmt.is_plain_name, names))

    def _owner_of(self, identity: Identity) -> int:
        """This user as the file system sees it: on a network it may map users. Raises OSError."""
        path = os.path.join(identity.folder(self._config.dir), identity.base_name())
        return os.lstat(fmt.definitions_name(path)).st_uid

    def is_alone(self, identity: Identity) -> bool:
        """Whether this is the only rank on its host, of several."""
        if _number("WORLD_SIZE") < 2:
            return False
        if on_host := _number("LOCAL_WORLD_SIZE"):
            return on_host == 1
        return not attempt(self._members.beside, identity)

    def stay_after_failure(self, identity: Identity) -> None:
        """This process failed: keep a companion until other hosts have asked why."""
        if self.has_other_hosts(identity):
            self.start(identity)

    def has_other_hosts(self, identity: Identity) -> bool:
        """Whether ranks of its job are on other hosts, as far as the launcher tells."""
        here = _number("LOCAL_WORLD_SIZE") or attempt(self._members.count, identity)
        return (here or 1) < _number("WORLD_SIZE")

    def stop(self) -> None:
        self._forget()
        self._adopter.stop()

    def forked(self) -> None:
        self._forget()
        self._adopter.forked()

    def _forget(self) -> None:
        self._log = None
        atexit.unregister(self._tell)

    def _order(self, path: str, identity: Identity, quiet_since: int | None) -> dict[str, Any]:
        """What the companion is to do: ``Order`` of ``disttrace_viewer.companion.service``."""
        return {
            "directory": os.path.dirname(path),
            "root": self._config.dir,
            "registry": path,
            "says": self.announcements(identity),
            "roll": self._members.path(identity),
            "job": identity.job,
            "in_names": file_part(identity.job),
            "host": file_part(identity.host),
            "exports": self.exports,
            "pending_s": self._config.pending,
            "keep": "json" in self._config.export,
            "watches": self._config.heartbeat,
            "stall_s": self._config.stall,
            "slow": self._config.slow,
            "quiet_since": quiet_since,
            "cwd": working_directory() or os.sep,
        }

    def _spawn(self, order: dict[str, Any], on_stall: str, descriptor: int, *, kept: bool) -> None:
        log = _log_of(order["registry"])
        environ = {**os.environ, _ON_STALL: on_stall}  # others see arguments
        with opened_own(log, os.O_CREAT | os.O_APPEND | os.O_WRONLY, self._owner) as logged:
            keeper = detached.start_ours(
                _MAIN, order, environ, out=descriptor, err=logged, kept=kept
            )
        self._adopter.keeps(keeper)

    def _tell(self) -> None:
        """At exit: what the exporter has to tell so far."""
        if self._log is None:
            return
        try:
            with opened_own(self._log, os.O_RDONLY, self._owner) as descriptor:
                written = os.pread(descriptor, _LONGEST_WORDS, 0).decode(errors="replace")
        except foreign.ours(OSError):
            return  # it had nothing to tell
        for sentence in written.splitlines()[:3]:
            self._say(f"otlp {sentence}", f"{sentence} ({self._log})")


def _number(variable: str) -> int:
    """What a launcher set in the environment; 0 where it does not."""
    return integer(os.environ.get(variable)) or 0


def _group_of(identity: Identity) -> str:
    """Names the exporter: one per job, host and pid namespace."""
    return "-".join(map(file_part, (identity.job, identity.host, namespace())))


def _log_of(registry: str) -> str:
    return registry[: -len(_REGISTRY)] + ".log"


@contextlib.contextmanager
def _registered(path: str, line: bytes, owner: int) -> Iterator[int | None]:
    """Append our line and hold the lock; None: an exporter holds it and will read the line."""
    for _ in range(_TRIES):
        with opened_own(path, os.O_CREAT | os.O_RDWR | os.O_APPEND, owner) as descriptor:
            os.write(descriptor, line)
            if not _lock(descriptor):
                yield None
                return
            if os.fstat(descriptor).st_nlink:  # else an exporter that ends removed it meanwhile
                yield descriptor
                return
    raise RuntimeError(f"the lock {path} cannot be taken")


def _lock(descriptor: int) -> bool:
    """False where another process holds it. Raises OSError."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except foreign.ours(BlockingIOError):
        return False
    return True


class MemberList:
    """Which processes of this host write journals below ``root``: each adds a line to the file of
    its job, and to that of bare ranks where no launcher tells how many there are."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._folder = self._place = ""
        self._size = 0
        self._entered: list[proc.Entry] = []  # what `first` has read, but for those that have ended

    def enter(self, identity: Identity, bare: bool) -> None:
        """This process has a journal. Raises OSError or ValueError."""
        line = proc.entry(identity.base_name())
        for what in (file_part(identity.job), *([_BARE] if bare else [])):
            flags = os.O_CREAT | os.O_WRONLY | os.O_APPEND
            with opened_own(self._of(identity, what), flags) as fd:
                os.write(fd, line)

    def count(self, identity: Identity) -> int:
        """Journals of its job that were begun on this host. Raises OSError."""
        return len(_entries(self.path(identity)))

    def path(self, identity: Identity) -> str:
        """The file of its job: lines as ``proc.entry`` makes them."""
        return self._of(identity, file_part(identity.job))

    def first(self, identity: Identity) -> Iterator[str]:
        """The journals of its job whose processes live, oldest first. Raises OSError."""
        try:
            with opened_own(self.path(identity), os.O_RDONLY) as fd:
                if self._size != (size := os.fstat(fd).st_size):
                    entered = proc.entries(os.pread(fd, _LONGEST_LIST, 0))
                    self._entered, self._size = [*entered], size
        except foreign.ours(FileNotFoundError):
            return  # the journal went with it: whoever writes that one says so
        for one in list(self._entered):
            if one.lives:
                yield one.base
            else:
                self._entered.remove(one)  # of two hundred restarts there are many, and for ever

    def beside(self, identity: Identity) -> bool:
        """Whether another bare rank lives here. Raises OSError."""
        return _lives_one(self._of(identity, _BARE))

    def leave(self, identity: Identity, *, failed: bool) -> None:
        """This process ends; the last one takes the files away, but not a rank that ``failed``
        before another one began: those will wait for it. Raises OSError."""
        if failed and _number("WORLD_SIZE") > 1 and self.count(identity) == 1:
            return
        for path in (self.path(identity), self._of(identity, _BARE)):
            if not _lives_one(path):
                for one in _entries(path):  # of those that were killed something is left
                    if fmt.is_plain_name(one.base):
                        attempt(os.unlink, f"{self.place(identity)}{one.base}{fmt.CALLS_SUFFIX}")
                try:
                    os.unlink(path)
                except foreign.ours(FileNotFoundError):
                    continue

    def _of(self, identity: Identity, what: str) -> str:
        name = "-".join((what, file_part(identity.host), namespace()))
        return f"{self.place(identity)}{name}{fmt.MEMBERS_SUFFIX}"

    def place(self, identity: Identity) -> str:
        """With which the paths of such files begin, looked up once: it is asked all the time."""
        folder = identity.folder(self._root)
        if folder != self._folder:
            self._folder, self._place = folder, place(folder)
        return self._place


def _entries(path: str) -> list[proc.Entry]:
    """Those that are in a file; none where there is no such file."""
    try:
        with opened_own(path, os.O_RDONLY) as fd:
            return [*proc.entries(os.pread(fd, _LONGEST_LIST, 0))]
    except foreign.ours(FileNotFoundError):
        return []


def _lives_one(path: str) -> bool:
    """Whether one lives of those in a file that is not this process."""
    return any(one.pid != os.getpid() and one.lives for one in _entries(path))
