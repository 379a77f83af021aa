"""Which process is meant, by what its kernel knows of it: the one reader of ``/proc/PID/stat``.

The number of a process identifies little by itself: it is given out again, and each namespace of
pids has its own. One process only, of all that ever were, has these together: the kernel's boot id,
the inode of its namespace of pids, its number there, and the clock ticks from boot to its start. A
process writes them down itself, and readers compare them for equality alone, with no host's name
and no wall clock: containers share the one, and the other may be set. The inode of the namespace of
time stands beside them, for ticks are counted differently in each.
"""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from disttrace.foreign import ours
from disttrace.journal.descriptors import attempt

ROOT = "/proc"
_PR_SET_PDEATHSIG = 1  # of <sys/prctl.h>

_STATE, _PARENT, _MINOR, _MAJOR, _USER, _KERNEL, _CHILDREN = 0, 1, 7, 9, 11, 12, 13
_THREADS, _TICKS, _STATUS = 17, 19, 49
"""Fields of ``stat`` counted from the state, which follows the name in brackets."""


class Stat(NamedTuple):
    """What ``/proc/PID/stat`` holds of a process, or ``/proc/PID/task/TID/stat`` of a thread."""

    state: str
    """The kernel's letter: ``R`` runs, ``S`` sleeps, ``D`` waits for a disk, ``T`` is stopped."""
    parent: int
    """Its parent's pid; 0 for one that is not in this namespace of pids."""
    ticks: int
    """Clock ticks from boot to its start."""
    cpu_ticks: int
    """Clock ticks that it has used, in user and in kernel mode."""
    children_ticks: int
    """Those of children that have ended, and of theirs."""
    faults: int
    """Pages that it has got."""
    threads: int
    status: int | None
    """Of one that has ended, as ``waitpid`` gives it."""

    @property
    def has_ended(self) -> bool:
        """Whether it is a zombie, or less than that; its first thread may end before others."""
        return self.state in ("Z", "X") and self.threads < 2


class Here(NamedTuple):
    """A kernel and namespaces of it: a process sees only what is in its own."""

    boot_id: str | None
    pid_ns: int | None
    time_ns: int | None


class Who(NamedTuple):
    """One process of all that ever were; what is None was not written down."""

    place: Here
    pid: int | None
    ticks: int | None


def who(record: Mapping[str, Any]) -> Who:
    """Who wrote a journal, by its record of the process."""
    place = Here(record.get("boot_id"), record.get("pid_ns"), record.get("time_ns"))
    return Who(place, record.get("pid"), record.get("ticks"))


def find(process: Who) -> tuple[bool | None, Stat | None]:
    """Whether a process runs (True), has ended (False), or is unknown (None); and its record, if
    only as a zombie."""
    place, pid = process.place, process.pid
    if pid is None or pid <= 0 or process.ticks is None or None in (place.boot_id, place.pid_ns):
        return None, None
    if place != here() or not _shows_own_pids():
        return None, None
    try:
        found = stat(pid)
    except ours(FileNotFoundError, ProcessLookupError):  # it may end before the read
        return (None if _exists(pid) else False), None
    except ours(OSError, ValueError):
        return None, None
    if found.ticks != process.ticks:
        return False, None  # the number was given to another process
    return not found.has_ended, found


def send(process: Who, number: int) -> bool:
    """Send a signal to a process that is certainly that one and runs; whether it went. A descriptor
    of a process stands for the one that had the number when it was opened: who that is, is looked
    at after."""
    pid = process.pid
    if find(process)[0] is not True or pid is None:
        return False
    try:
        opened = os.pidfd_open(pid)
    except ours(AttributeError, OSError):
        opened = -1  # an old kernel, or not Linux
    try:
        if find(process)[0] is not True:
            return False
        if opened >= 0:
            signal.pidfd_send_signal(opened, number)
        else:
            os.kill(pid, number)
    except ours(OSError):
        return False
    finally:
        if opened >= 0:
            os.close(opened)
    return True


def stat(task: int | str) -> Stat:
    """The record of a process, or of ``PID/task/TID``. Raises OSError or ValueError."""
    with open(f"{ROOT}/{task}/stat", encoding="utf-8", errors="replace") as file:
        fields = file.read().rpartition(")")[2].split()
    if len(fields) <= _TICKS:
        raise ValueError(f"{ROOT}/{task}/stat has {len(fields)} fields")
    status = int(fields[_STATUS]) if len(fields) > _STATUS else None
    return Stat(
        state=fields[_STATE],
        parent=int(fields[_PARENT]),
        ticks=int(fields[_TICKS]),
        cpu_ticks=int(fields[_USER]) + int(fields[_KERNEL]),
        children_ticks=int(fields[_CHILDREN]) + int(fields[_CHILDREN + 1]),
        faults=int(fields[_MINOR]) + int(fields[_MAJOR]),
        threads=int(fields[_THREADS]),
        status=status,
    )


def known(task: int | str) -> Stat | None:
    """``stat`` where there is such a process, or thread, and it may be looked at."""
    try:
        return stat(task)
    except ours(OSError, ValueError):
        return None


def status(task: int | str) -> dict[str, str]:
    """The lines of ``/proc/TASK/status``; none where it ended or hides them."""
    try:
        with open(f"{ROOT}/{task}/status", encoding="utf-8", errors="replace") as file:
            parts = [line.partition(":") for line in file]
    except ours(OSError):
        return {}
    return {name: value.strip() for name, _, value in parts}


def here() -> Here:
    """The kernel and the namespaces of this process."""
    return Here(boot_id(), namespace("pid"), namespace("time"))


def namespace(kind: str) -> int | None:
    """The inode of a namespace of this process, ``pid`` or ``time``; None: it has none."""
    try:
        return os.stat(f"{ROOT}/self/ns/{kind}").st_ino
    except ours(OSError):
        return None


def own() -> dict[str, object]:
    """Keys of the record of a process that tell it from all others; those that are known."""
    itself = known("self")
    found = {**here()._asdict(), "ticks": None if itself is None else itself.ticks}
    return {key: value for key, value in found.items() if value is not None}


def mark(task: Stat) -> str:
    """What tells a process from an earlier or later one of its number, in a word."""
    return f"{task.ticks}@{boot_id()}"


class Entry(NamedTuple):
    """A process of this host that has a journal, as it wrote down in a line ``PID MARK BASE``."""

    pid: int
    mark: str
    base: str

    @property
    def lives(self) -> bool:
        """Whether it still runs; a zombie does not."""
        found = known(self.pid)
        return found is not None and not found.has_ended and mark(found) == self.mark


def entry(base: str) -> bytes:
    """The line of this process. Raises OSError or ValueError."""
    return f"{os.getpid()} {mark(stat('self'))} {base}\n".encode()


def entries(data: bytes) -> Iterator[Entry]:
    """The processes of whole lines; anything else is passed over."""
    for line in data[: data.rfind(b"\n") + 1].decode("utf-8", "replace").splitlines():
        pid, known, base = [*line.split(" ", 2), "", ""][:3]
        if pid.isascii() and pid.isdecimal() and len(pid) < 10:
            yield Entry(int(pid), known, base)


def open_files(pid: int) -> Iterator[str]:
    """Paths in ``/proc`` of what a process has open; none where it ended or hides them."""
    folder = f"{ROOT}/{pid}/fd"
    try:
        names = os.listdir(folder)
    except ours(OSError):
        return
    for name in names:
        yield f"{folder}/{name}"


def opened(pid: int) -> Iterator[str]:
    """What a process has open: paths, and ``socket:[INODE]``."""
    for path in open_files(pid):
        found = attempt(os.readlink, path)
        if found is not None:  # else it was closed meanwhile
            yield found


def has_open(pid: int, file: os.stat_result) -> bool:
    """Whether a process has that file open, whatever it is called."""
    found = (attempt(os.stat, path) for path in open_files(pid))
    return any(one is not None and os.path.samestat(one, file) for one in found)


def boot_id() -> str | None:
    """What the kernel drew when it started; None where it draws nothing."""
    try:
        with open(f"{ROOT}/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip() or None
    except ours(OSError, ValueError):
        return None


def end_with(starter: int) -> None:
    """Called in a child: it dies with a killed starter, after an exec too (Linux, prctl(2))."""
    import ctypes

    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is not None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != starter:
            os._exit(70)  # it was killed before that


def _shows_own_pids() -> bool:
    """Whether ``/proc`` is that of this process's own namespace of pids: it may be another's."""
    # From the namespace that is shown down to that of the process.
    numbers = status("self").get("NSpid", "").split()
    return (
        len(numbers) == 1 if numbers else attempt(os.readlink, f"{ROOT}/self") == str(os.getpid())
    )


def _exists(pid: int) -> bool:
    """Whether there is a process of that number, also where ``/proc`` hides it from us."""
    try:
        os.kill(pid, 0)
    except ours(OSError) as error:
        return error.errno != errno.ESRCH
    except ours(OverflowError):
        return False
    return True
