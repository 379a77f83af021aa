"""Of the hosts that share a folder one may read all of it: whoever holds a lock in it.

It is needed where the companions of some hosts do not answer, or have no place to meet: what they
would tell is in the folder, and if each read that, it would be read once for every host.
"""

from __future__ import annotations

import fcntl
import os
import time

from disttrace.journal.format import open_own

SUFFIX = ".lead"
FIRST_S = 1.5
"""So long the host of rank 0 has to take it, before others may."""
UNHEARD_S = 75.0
"""After so long without a sign of whoever holds it, it is as if it did not answer either."""


class FolderLead:
    """This host's part in it, for the job with names that begin with ``job``. ``directory`` is that
    of all journals, so that hosts meet there whose journals lie in folders of their own.
    """

    def __init__(self, directory: str, job: str) -> None:
        self._path = os.path.join(directory, f"{job}{SUFFIX}")
        self._fd = -1
        self._wanted_since: float | None = None
        self._sign = (0, 0.0)
        """When the holder touched it last, and when we saw that."""

    def claim(self, *, first: bool) -> bool | None:
        """Whether it is for us to read on; None where the file system has no locks, so that there
        is no telling. ``first``: others leave it to us for a while.
        """
        now = time.monotonic()
        if self._fd >= 0:
            os.utime(self._fd)
            return True
        if self._wanted_since is None:
            self._wanted_since = now
        if not first and now - self._wanted_since < FIRST_S:
            return False
        try:
            return self._locked() or self._is_unheard(now)
        except OSError:
            return None  # also where something of somebody else's is in its place

    def release(self) -> None:
        """Another one may."""
        self._wanted_since = None
        fd, self._fd = self._fd, -1
        if fd < 0:
            return
        try:
            os.unlink(self._path)
        except OSError:
            pass  # the folder is gone
        os.close(fd)

    def _locked(self) -> bool:
        fd = open_own(self._path, os.O_CREAT | os.O_RDWR)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(fd).st_nlink:  # else the one before us removed it meanwhile
                self._fd, fd = fd, -1
                return True
        except BlockingIOError:
            pass
        finally:
            if fd >= 0:
                os.close(fd)
        return False

    def _is_unheard(self, now: float) -> bool:
        touched = os.stat(self._path).st_mtime_ns
        if touched != self._sign[0]:
            self._sign = (touched, now)
        return now - self._sign[1] > UNHEARD_S
