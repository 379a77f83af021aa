"""The command of DISTTRACE_ON_STALL: it gets each verdict on its standard input, and ends with us.

It starts as a shell's would, whatever the program ignored or blocked. When the job is over it gets
some seconds, and then it is ended with all that did not leave its process group.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import time
from collections.abc import Sequence
from typing import Any

MOST_BYTES = 60_000
"""Of a report: what the kernel takes of it at once, for it may never be read."""
_LEFT_OUT: tuple[tuple[str, Any], ...] = (
    ("report", ""),
    ("also", []),
    ("finding", None),
    ("processes", []),
)
"""In this order, each for what stands in its place."""


def line(findings: Sequence[dict[str, Any]], alert: dict[str, Any]) -> str:
    """The object as JSON; ``findings``: objects, the first finding first."""
    first, *others = findings
    whole = {**first, "also": others, **alert}
    text = json.dumps(whole)
    for key, instead in _LEFT_OUT:
        if len(text) < MOST_BYTES:
            break
        whole[key] = instead
        text = json.dumps(whole)
    return text + "\n"


_SHELL = "/bin/sh"
_IN_FOLDER = 'cd -- "$1" 2>/dev/null; exec /bin/sh -c "$2"'
GRACE_S = 5.0
"""So long it may go on when the job is over."""
_TERMINATED_S = 2.0
"""So long it has to end after that signal."""
_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER of <sys/prctl.h>


class Commands:
    """Each run of the command, until all of its processes have ended."""

    def __init__(self, command: str, folder: str) -> None:
        """``folder``: where it runs; the root where there is no such folder any more."""
        self._command = command
        self._folder = folder
        self._groups: set[int] = set()
        self._ever = False

    def run(self, text: str) -> None:
        """Start it with a report; none waits for it. Raises OSError."""
        self._ever = True
        _adopt_orphans()
        reads, writes = os.pipe2(os.O_CLOEXEC)
        try:
            pid = os.posix_spawn(
                _SHELL,
                [_SHELL, "-c", _IN_FOLDER, _SHELL, self._folder, self._command],
                os.environ,
                file_actions=[
                    (os.POSIX_SPAWN_DUP2, reads, 0),
                    (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
                    (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
                ],
                setsid=True,
                setsigmask=[],
                setsigdef=signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP},
            )
            self._groups.add(pid)
            os.set_blocking(writes, False)
            os.write(writes, text.encode("utf-8", "replace")[:MOST_BYTES])
        finally:
            os.close(reads)
            os.close(writes)

    def look(self, other: int | None = None) -> None:
        """Reap what has ended; ``other`` is a child that is reaped elsewhere."""
        self._run_on()
        if self._ever:
            _reap_strays(other)

    def _run_on(self) -> bool:
        """Whether any still runs, after those that have ended are reaped."""
        self._groups = {group for group in self._groups if _reaped(group)}
        return bool(self._groups)

    def finish(self) -> None:
        """The job is over: wait a little, then end them."""
        if not self._over_within(GRACE_S):
            self._signal(signal.SIGTERM)
            if not self._over_within(_TERMINATED_S):
                self._signal(signal.SIGKILL)
                self._over_within(_TERMINATED_S)

    def _over_within(self, seconds: float) -> bool:
        until = time.monotonic() + seconds
        while self._run_on():
            if time.monotonic() > until:
                return False
            time.sleep(0.05)
        return True

    def _signal(self, number: signal.Signals) -> None:
        for group in self._groups:  # which exist: a member is our child, and not reaped
            try:
                os.killpg(group, number)
            except OSError:
                continue  # setuid: it is not ours any more


def _reaped(group: int) -> bool:
    """Reap those of the group that have ended; whether one is left."""
    try:
        while os.waitid(os.P_PGID, group, os.WEXITED | os.WNOHANG) is not None:
            pass
    except ChildProcessError:
        return False
    return True


def _reap_strays(other: int | None) -> None:
    """Those that left their group, and live as long as they like."""
    how = os.WEXITED | os.WNOHANG | os.WNOWAIT
    try:
        while (ended := os.waitid(os.P_ALL, 0, how)) is not None and ended.si_pid != other:
            os.waitpid(ended.si_pid, 0)
    except ChildProcessError:
        return


def _adopt_orphans() -> None:
    """What a command leaves behind is our child then: it is reaped, and its group is known."""
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is not None:
        prctl(_SUBREAPER, 1, 0, 0, 0)
