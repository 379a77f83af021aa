"""Processes that bear a mark in their environment: what a tool started, and whatever came of it.

An orphan has no parent that would lead to it, and a number is soon another process's; the mark is
inherited, and what bears it may be ended.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Collection
from pathlib import Path

VARIABLE = "STARTED_BY_TEST"
"""The tool's mark, and ``/`` with a name for one run of it."""
_END_S = 20.0


def end(mark: str, sessions: Collection[int] = (), *, but: int = 0) -> None:
    """SIGKILL to all that bear ``mark`` or one that begins with it and ``/``.

    ``sessions``: those too that bear the mark before the last ``/`` and stand in one of these: a
    forked process keeps the environment it was started with. Returns when they are gone;
    TimeoutError where one does not go.
    """
    deadline = time.monotonic() + _END_S
    while True:
        left = [pid for pid in _all() if pid != but and _ended(pid, mark, sessions)]
        if not left:
            return
        if time.monotonic() > deadline:
            raise TimeoutError(f"processes {left} do not end")
        time.sleep(0.05)


def _all() -> list[int]:
    return [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]


def _ended(pid: int, mark: str, sessions: Collection[int]) -> bool:
    """Whether it is one of these, which gets the signal; what is only a zombie has ended."""
    try:
        process = os.pidfd_open(pid)  # whatever gets its number later is another one
    except OSError:
        return False
    try:
        state, _, _, session = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:4]
        if state in "ZX" or not _bears(pid, mark, int(session) in sessions):
            return False
        signal.pidfd_send_signal(process, signal.SIGKILL)
    except (OSError, ValueError):
        return False
    finally:
        os.close(process)
    return True


def _bears(pid: int, mark: str, inside: bool) -> bool:
    variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    name = VARIABLE.encode() + b"="
    found = next((one[len(name) :].decode() for one in variables if one.startswith(name)), None)
    if found is None:
        return False
    return found == mark or found.startswith(f"{mark}/") or (inside and f"{found}/" in mark)
