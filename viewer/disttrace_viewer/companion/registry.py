"""The traced processes of a job on this host, as they registered, and which of them live.

The file holds one line per journal (``proc.entry``) and is the lock of
its exporter: a process appends its line first and tries the lock then, the exporter lets go of the
lock first and looks for new lines then. So one of the two sees the other, always.

It lies in a folder where others may write: see ``open_own``. What it names is a journal in the
same folder that belongs to the same user, or is not read.
"""

from __future__ import annotations

import fcntl
import os
import stat
import time
from contextlib import suppress

import disttrace.journal.format as fmt
from disttrace.journal.format import CALLS_SUFFIX, ROLL_SUFFIX, is_plain_name, opened_own
from disttrace.journal.proc import Entry, entries
from disttrace.lifecycle.meeting import namespace


class JournalRegistry:
    """The file at ``path``, locked by the maker of ``descriptor``."""

    def __init__(self, path: str, descriptor: int) -> None:
        self.path = path
        self.entries: list[Entry] = []
        self.inherited: list[str] = []
        """Journals of processes that had ended when this companion began, in the file of one that
        was killed before it."""
        self.refused: list[str] = []
        """Names in the file that are not those of our journals, and not read."""
        self.owner = os.fstat(descriptor).st_uid
        self._fd = descriptor
        self._position = 0

    def poll(self) -> list[Entry]:
        """Processes that registered since the last time, and whose journals are ours."""
        data = os.pread(self._fd, 1 << 20, self._position)
        # Each companion writes its line when it has the lock: of several all but one were killed.
        is_left_over = not self._position and data.count(fmt.EXPORTER_LINE) > 1
        self._position += data.rfind(b"\n") + 1
        new = []
        for entry in entries(data):
            if not self._is_ours(entry.base):
                self.refused.append(entry.base)
            elif is_left_over and not entry.lives:
                self.inherited.append(entry.base)
            else:
                new.append(entry)
        self.entries += new
        return new

    def release(self) -> bool:
        """Remove the file and let go of the lock; False if one registered meanwhile and all goes
        on."""
        if self._unread():
            return False
        try:
            if os.lstat(self.path).st_ino == os.fstat(self._fd).st_ino:
                os.unlink(self.path)
        except OSError:
            pass  # the folder was deleted under us
        fcntl.flock(self._fd, fcntl.LOCK_UN)
        return not self._unread() or not self._again()

    def _is_ours(self, base: str) -> bool:
        path = os.path.join(os.path.dirname(self.path), base)
        return fmt.is_plain_name(base) and fmt.is_own(fmt.definitions_name(path), self.owner)

    def _unread(self) -> bool:
        return os.fstat(self._fd).st_size > self._position

    def _again(self) -> bool:
        """One registered while we let go: serve it, unless it started another companion."""
        late = os.pread(self._fd, 1 << 20, self._position)
        try:
            fresh = fmt.open_own(self.path, os.O_CREAT | os.O_RDWR | os.O_APPEND, self.owner)
        except OSError:
            return False  # something else is in its place: they cannot be served
        try:
            fcntl.flock(fresh, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.write(fresh, late)  # the other one reads on
            os.close(fresh)
            return False
        os.write(fresh, fmt.EXPORTER_LINE + late)
        os.close(self._fd)
        self._fd, self._position = fresh, 0
        return True


SETTLED_S = 60.0
"""A roll to which one was added since is left alone: a job may just begin."""
_MOST, _MOST_BYTES = 1000, 1 << 20
"""Rolls that are looked at in one go."""


def sweep(folder: str) -> int:
    """Take away the rolls of this pid namespace none of whose processes lives, with the pages of
    their processes; how many. Of what cannot be read or removed nothing is reported.
    """
    removed = 0
    own = f"-{namespace()}{ROLL_SUFFIX}"
    try:
        names = [name for name in os.listdir(folder) if name.endswith(own)][:_MOST]
    except OSError:
        return 0
    for name in names:
        path = os.path.join(folder, name)
        with suppress(OSError):
            found = os.lstat(path)
            if time.time() - found.st_mtime < SETTLED_S or not stat.S_ISREG(found.st_mode):
                continue
            with opened_own(path, os.O_RDONLY) as fd:
                writers = [*entries(os.pread(fd, _MOST_BYTES, 0))]
            if any(one.lives for one in writers):
                continue
            journals = name.partition("-")[0]
            for base in {one.base for one in writers if is_plain_name(one.base)}:
                with suppress(FileNotFoundError):
                    os.unlink(os.path.join(folder, f"{journals}-{base}{CALLS_SUFFIX}"))
            os.unlink(path)
            removed += 1
    return removed
