"""Whether a process runs, has ended, or is not known to: by its identity, as its kernel has it.

The answer is one of three, and the first two are never a guess:

* it **runs** (``alive`` is True): this kernel, in this namespace of pids, has a process of its
  number that was started at its tick;
* it **has ended** (False): there is none of its number, or one that was started at another tick, or
  it is a zombie or writes its memory to a disk;
* **unknown** (None): it is of another boot or namespace, or wrote a journal that does not tell of
  which. Another boot is not an earlier one of this host: neither a host's name nor its machine id
  tells two containers apart, and folders are copied.

Two programs that followed one another in one process (``exec``) have one identity, and run both:
that the earlier one is over is known by their journals (``merge/processes.py``).
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

from disttrace.journal.format import SEEN_GONE, STOPPED
from disttrace.journal.proc import Here, Who, find, status
from disttrace_viewer.trace.process import Process
from disttrace_viewer.trace.values import dataclass, replace


@dataclass(frozen=True, slots=True)
class Observation:
    """``alive`` is None where this host does not know."""

    alive: bool | None
    code: int | None = None
    """Exit code of a zombie; -N for signal N."""
    state: str | None = None
    """The kernel's letter for one that lives: ``T`` and ``t`` stopped, ``D`` waits for a disk."""

    gone_among: int | None = None
    """So many other processes of the job lived on its host when it was seen to be gone there."""
    gone_ns: int = 0
    """When that was, if it was."""

    @property
    def is_stopped(self) -> bool:
        """By a signal, or a debugger; of one that lives no more: when it was seen last."""
        return self.state in ("T", "t")


DISK = "disk"

UNKNOWN = Observation(None)
GONE = Observation(False)

Look = Callable[[Process], Observation]


def look(process: Process) -> Observation:
    """Ask this kernel for the process that wrote a journal."""
    alive, found = find(who(process))
    if alive is None:
        return UNKNOWN
    if not alive:
        return GONE if found is None else Observation(False, _code(found.status))
    if status(str(process.pid)).get("CoreDumping") == "1":
        return GONE  # it crashed; to write its memory to a disk may take minutes
    return Observation(True, state=None if found is None else found.state)


def remembered(process: Process, now: Observation) -> Observation:
    """What is known of a process: what its kernel states now, and what was noted of it while others
    of its host lived, unless it gave a sign of life after that."""
    noted = {one.state: one for one in process.sightings if one.t_ns >= process.last_ns}
    if now.alive or not noted:
        return now
    if STOPPED in noted:
        now = replace(now, state="T")
    if (gone := noted.get(SEEN_GONE)) is None:
        return now
    code = gone.code if now.code is None else now.code
    return replace(now, alive=False, code=code, gone_among=gone.others, gone_ns=gone.t_ns)


def identity(process: Process) -> dict[str, Any]:
    """What names a process, and its journal, as in the record of the process."""
    names = ("boot_id", "pid_ns", "time_ns", "pid", "ticks")
    return {"process": process.id, **{name: getattr(process, name) for name in names}}


def who(process: Process) -> Who:
    """The identity of a process for its kernel."""
    place = Here(process.boot_id, process.pid_ns, process.time_ns)
    return Who(place, process.pid, process.ticks)


def _code(status: int | None) -> int | None:
    if status is None:
        return None
    return -(status & 0x7F) if status & 0x7F else status >> 8


def signal_name(code: int) -> str:
    """``SIGKILL`` for -9."""
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"
