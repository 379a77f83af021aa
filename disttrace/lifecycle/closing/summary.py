"""One line at the end of a traced job, on the stderr of whoever launched it."""

from __future__ import annotations

import atexit
import os
import re
import sys
from collections.abc import Callable

from disttrace import errors
from disttrace.config import Config
from disttrace.identity import AGENT, Identity
from disttrace.lifecycle.meeting.roll import Roll


class Summary:
    """Says how many journals there are, where, and what to do with them."""

    def __init__(
        self, config: Config, is_open: Callable[[], bool], joined_as: Callable[[], int | None]
    ) -> None:
        """``is_open``: whether this process has a journal; ``joined_as``: its rank in the default
        group, which no variable tells under mpirun and the like.
        """
        self._config = config
        self._is_open = is_open
        self._joined_as = joined_as
        self._identity: Identity | None = None
        self._roll = Roll(config.dir)

    def install(self, identity: Identity) -> None:
        """Say it at the end of this process, if it launched the job."""
        self._identity = identity
        atexit.register(self._leave)
        if not self._config.quiet and "json" in self._config.export:
            atexit.register(self._say)

    def remove(self) -> None:
        """Say nothing: tracing ended before the process, or this is a forked child."""
        self._identity = None
        atexit.unregister(self._say)
        atexit.unregister(self._leave)

    def _leave(self) -> None:
        """Nothing of a job is left where its processes met."""
        try:
            if self._identity is not None and self._is_open():
                self._roll.leave(self._identity)
        except OSError:
            pass  # others clean up there, too

    def _say(self) -> None:
        identity = self._identity
        if identity is None or not self._is_open() or not self._launched(identity):
            return
        folder = self._config.dir
        try:
            os.stat(folder)
            count = max(1, self._roll.count(identity))  # of this host: nobody lists the folder
            shown = os.path.relpath(folder)
            shown = _quoted(errors.plain(folder if shown.startswith("..") else shown))
            noun = "journal" if count == 1 else "journals"
            errors.tell(
                f"disttrace: {count} {noun} in {shown}; what happened: disttrace view {shown}; "
                f"what is wrong: disttrace diagnose {shown}\n",
                sys.stderr,
            )
        except (OSError, ValueError):
            pass  # the folder is gone

    def _launched(self, identity: Identity) -> bool:
        """Whether this process is where the job began, as far as it can know by itself: torchrun's
        agent, a process that no traced one started, and of several such ranks the first.
        """
        if identity.role == AGENT:
            return True
        joined = self._joined_as()
        rank = identity.rank if joined is None else joined
        return identity.parent is None and rank in (None, 0)


def _quoted(path: str) -> str:
    """As a shell takes it for one word (``shlex`` is one of the program's own modules, perhaps)."""
    if re.fullmatch(r"[\w@%+=:,./-]+", path, re.ASCII):
        return path
    return "'" + path.replace("'", "'\"'\"'") + "'"
