"""Who would adopt the companion; one that is traced starts it itself, where it cannot see it.

An orphan becomes a child of the nearest of its ancestors that adopts: the first process of the pid
namespace (often torchrun, in a container), or a subreaper. Such a program may wait until it has no
child, and the companion until the program ends. The kernel tells nobody else who adopts, so each
traced process that does makes a file, ``HOST-NAMESPACE-PID.adopts``: its start time, and below it
the orders of those who want a companion. It starts that with a keeper between (``detached``). Of
several the first is asked: when another ends, what it kept would be the first one's.
"""

from __future__ import annotations

import atexit
import json
import os
from collections.abc import Callable
from typing import Any

from disttrace.identity import file_part
from disttrace.journal import proc
from disttrace.journal.format import opened_own
from disttrace.lifecycle import detached
from disttrace.lifecycle.meeting.place import namespace, records_in

SUFFIX = ".adopts"
_LONGEST = 64 << 10
_DEEPEST = 1000  # ancestors


class Adopter:
    """This process, where it is one."""

    def __init__(self, folder: str) -> None:
        """``folder``: of the journals; nothing is made in it before the first ``look``."""
        self._folder = folder
        self._path: str | None = None
        self._position = 0
        self._over = False
        self._keepers: list[int] = []

    def look(self, owner: Callable[[], int]) -> list[dict[str, Any]]:
        """What it is asked to start; the first time, others are told that they may ask.

        ``owner``: this user as the file system sees it. Raises OSError.
        """
        self._keepers = [pid for pid in self._keepers if not detached.reap(pid)]
        if self._path is None:
            if not self._over and detached.adopts():
                self._announce(owner())
            return []
        try:
            if os.stat(self._path).st_size <= self._position:
                return []
        except OSError:
            self._path = None  # the folder was emptied: it is made again
            return []
        with opened_own(self._path, os.O_RDONLY, owner()) as file:
            data = os.pread(file, _LONGEST, self._position)
        whole = data[: data.rfind(b"\n") + 1]
        self._position += len(whole)
        return list(records_in(whole))

    def keeps(self, keeper: int) -> None:
        """To be reaped when it ends; 0 is none."""
        if keeper:
            self._keepers.append(keeper)

    def stop(self) -> None:
        """Nobody is to ask any more."""
        atexit.unregister(self.stop)
        path, self._path, self._over = self._path, None, True
        if path is not None:
            try:
                os.unlink(path)
            except OSError:
                pass  # the folder is gone

    def forked(self) -> None:
        """In a forked child: all of this is the parent's."""
        atexit.unregister(self.stop)
        self._path, self._over, self._keepers = None, False, []

    def _announce(self, owner: int) -> None:
        path = _file_of(self._folder, os.getpid())
        line = f"{proc.mark(proc.stat('self'))}\n".encode()
        with opened_own(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, owner) as file:
            os.write(file, line)
        self._path, self._position = path, len(line)
        atexit.register(self.stop)


def first(folder: str, owner: int) -> int | None:
    """The first of this process and its ancestors that is traced and adopts; None: there is none.

    Raises OSError or ValueError where /proc does not tell.
    """
    found = os.getpid() if detached.adopts() else None
    pid = os.getpid()
    for _ in range(_DEEPEST):
        pid = proc.stat(pid).parent
        if pid == 0:  # beyond the namespace
            return found
        try:
            with opened_own(_file_of(folder, pid), os.O_RDONLY, owner) as file:
                says = os.pread(file, 100, 0).partition(b"\n")[0]
        except OSError:
            continue
        if says == proc.mark(proc.stat(pid)).encode():
            found = pid
    return found


def ask(folder: str, pid: int, order: dict[str, Any], owner: int) -> None:
    """Have the adopter ``pid`` start the companion. Raises OSError."""
    with opened_own(_file_of(folder, pid), os.O_WRONLY | os.O_APPEND, owner) as file:
        os.write(file, json.dumps(order).encode() + b"\n")


def _file_of(folder: str, pid: int) -> str:
    parts = (os.uname().nodename, namespace(), str(pid))
    return os.path.join(folder, "-".join(map(file_part, parts)) + SUFFIX)
