"""Which processes of this host write journals into one folder, without a look into that folder.

Each adds a line to two files of the meeting place: to that of its job, by which the journals are
counted at the end, and, where no launcher says how many ranks are on a host, to that of all bare
ranks, by which one knows whether it is alone.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from disttrace.identity import Identity, file_part
from disttrace.journal import proc
from disttrace.journal.format import CALLS_SUFFIX, ROLL_SUFFIX, is_plain_name, opened_own
from disttrace.lifecycle.meeting.place import namespace, place

_BARE = "bare"
_MOST = 1 << 20


class Roll:
    """Of those below the folder of all, ``root``."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._size = 0
        self._entered: list[proc.Entry] = []
        """What ``first`` has read, but for those that have ended."""

    def enter(self, identity: Identity, *, bare: bool) -> None:
        """This process has a journal. Raises OSError or ValueError."""
        line = proc.entry(identity.base_name())
        for what in (file_part(identity.job), *([_BARE] if bare else [])):
            flags = os.O_CREAT | os.O_WRONLY | os.O_APPEND
            with opened_own(self._of(identity, what), flags) as fd:
                os.write(fd, line)

    def count(self, identity: Identity) -> int:
        """Journals of its job that were begun on this host. Raises OSError."""
        return len(_read(self.path(identity)))

    def path(self, identity: Identity) -> str:
        """The file of its job: lines as ``proc.entry`` makes them."""
        return self._of(identity, file_part(identity.job))

    def first(self, identity: Identity) -> Iterator[str]:
        """The journals of its job whose processes live, oldest first. Raises OSError."""
        with opened_own(self.path(identity), os.O_RDONLY) as fd:
            size = os.fstat(fd).st_size
            if size != self._size:
                self._entered, self._size = [*proc.entries(os.pread(fd, _MOST, 0))], size
        for one in list(self._entered):
            if one.lives:
                yield one.base
            else:
                self._entered.remove(one)  # of two hundred restarts there are many, and for ever

    def beside(self, identity: Identity) -> bool:
        """Whether another bare rank lives here. Raises OSError."""
        return _lives_one(self._of(identity, _BARE))

    def leave(self, identity: Identity) -> None:
        """This process ends; whoever is the last one takes the files away. Raises OSError."""
        for what in (file_part(identity.job), _BARE):
            path = self._of(identity, what)
            if not _lives_one(path):
                self._sweep(path, identity)
                try:
                    os.unlink(path)
                except FileNotFoundError:
                    continue

    def _sweep(self, path: str, identity: Identity) -> None:
        """Of those that were killed something is left."""
        for one in _read(path):
            with contextlib.suppress(FileNotFoundError):
                if is_plain_name(one.base):
                    os.unlink(f"{self._place(identity)}{one.base}{CALLS_SUFFIX}")

    def _of(self, identity: Identity, what: str) -> str:
        name = "-".join((what, file_part(identity.host), namespace()))
        return f"{self._place(identity)}{name}{ROLL_SUFFIX}"

    def _place(self, identity: Identity) -> str:
        return place(identity.folder(self._root))


def _read(path: str) -> list[proc.Entry]:
    """Those that are in a file; none where there is no such file."""
    try:
        with opened_own(path, os.O_RDONLY) as fd:
            return [*proc.entries(os.pread(fd, _MOST, 0))]
    except FileNotFoundError:
        return []


def _lives_one(path: str) -> bool:
    """Whether one lives of those in a file that is not this process."""
    return any(one.pid != os.getpid() and one.lives for one in _read(path))
