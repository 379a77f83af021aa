"""What the kernel of this host says about a process: it lives, is a zombie, or is gone."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable
from dataclasses import dataclass

from disttrace_viewer.trace.model import Process

_STATE, _START, _CODE = 0, 19, 49
"""Fields of ``/proc/PID/stat`` counted from the state, which follows the name in brackets."""
_SLACK_S = 3.0


@dataclass(frozen=True, slots=True)
class Seen:
    """``alive`` is None where this host cannot tell."""

    alive: bool | None
    code: int | None = None
    """Exit code of a zombie; -N for signal N."""
    state: str | None = None
    """The kernel's letter for one that lives: ``T`` and ``t`` stopped, ``D`` waits for a disk."""


STOPPED, DISK = "stopped", "disk"

UNKNOWN = Seen(None)
GONE = Seen(False)

Look = Callable[[Process], Seen]


def look(process: Process) -> Seen:
    """Ask ``/proc``; only for processes of this host and boot."""
    if process.pid is None or process.boot_id is None or process.boot_id != _boot_id():
        return UNKNOWN
    if process.host.split(".")[0] != socket.gethostname().split(".")[0]:
        return UNKNOWN  # the same kernel, but perhaps another namespace of pids
    try:
        with open(f"/proc/{process.pid}/stat", encoding="utf-8", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return GONE  # also of one that ended between the opening and the reading
    except OSError:
        return UNKNOWN
    if _started_s(fields) > process.start_ns / 1e9 + _SLACK_S:
        return GONE  # the number was given to another process
    if fields[_STATE] in ("Z", "X"):
        return Seen(False, _code(fields))
    if _dumps_core(process.pid):
        return GONE  # it crashed; to write its memory to a disk may take minutes
    return Seen(True, state=fields[_STATE])


def _dumps_core(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as file:
            return any(line.split() == ["CoreDumping:", "1"] for line in file)
    except OSError:
        return False  # it has ended meanwhile, or is none of ours


def _code(fields: list[str]) -> int | None:
    if len(fields) <= _CODE:
        return None
    status = int(fields[_CODE])
    return -(status & 0x7F) if status & 0x7F else status >> 8


def _started_s(fields: list[str]) -> float:
    return _boot_s() + int(fields[_START]) / os.sysconf("SC_CLK_TCK")


def _boot_s() -> float:
    with open("/proc/stat", encoding="ascii") as file:
        for line in file:
            if line.startswith("btime "):
                return float(line.split()[1])
    return 0.0


def _boot_id() -> str | None:
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return None


def signal_name(code: int) -> str:
    """``SIGKILL`` for -9."""
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"
