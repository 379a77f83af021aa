"""The traced processes of a job on this host, as they registered, and which of them live.

The file holds one line ``PID START BASE`` per journal and is the lock of its exporter: a process
appends its line first and tries the lock then, the exporter lets go of the lock first and looks
for new lines then. So one of the two sees the other, always.
"""

from __future__ import annotations

import fcntl
import os
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Entry:
    """A process with a journal: ``start`` tells it from a later one with its pid."""

    pid: int
    start: str
    base: str

    def alive(self) -> bool:
        """Whether it still runs; a zombie does not."""
        try:
            with open(f"/proc/{self.pid}/stat", encoding="utf-8", errors="replace") as file:
                fields = file.read().rpartition(")")[2].split()
        except OSError:
            return False
        return fields[0] not in ("Z", "X") and fields[19] == self.start


class Registry:
    """The file at ``path``, locked by whoever made ``descriptor``."""

    def __init__(self, path: str, descriptor: int) -> None:
        self.path = path
        self.entries: list[Entry] = []
        self._fd = descriptor
        self._position = 0

    def poll(self) -> list[Entry]:
        """Processes that registered since the last time."""
        data = os.pread(self._fd, 1 << 20, self._position)
        end = data.rfind(b"\n") + 1
        self._position += end
        new = []
        for line in data[:end].decode("utf-8", "replace").splitlines():
            pid, _, rest = line.partition(" ")
            start, _, base = rest.partition(" ")
            if pid.isdigit() and base:
                new.append(Entry(int(pid), start, base))
        self.entries += new
        return new

    def release(self) -> bool:
        """Remove the file and let go of the lock; False if somebody came and all goes on."""
        if self._unread():
            return False
        try:
            os.unlink(self.path)
        except OSError:
            pass  # the folder was deleted under us
        fcntl.flock(self._fd, fcntl.LOCK_UN)
        return not self._unread() or not self._again()

    def _unread(self) -> bool:
        return os.fstat(self._fd).st_size > self._position

    def _again(self) -> bool:
        """Somebody registered while we let go: serve them, unless they started another one."""
        late = os.pread(self._fd, 1 << 20, self._position)
        fresh = os.open(self.path, os.O_CREAT | os.O_RDWR | os.O_APPEND | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(fresh, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.write(fresh, late)  # the other one reads on
            os.close(fresh)
            return False
        os.write(fresh, late)
        os.close(self._fd)
        self._fd, self._position = fresh, 0
        return True
