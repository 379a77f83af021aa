"""Has the last word on a job worked out, and prints it, below all tracebacks.

Only where something was wrong: this process or one that it started failed, or it has announced a
stall last. Then a process beside it judges the journals (``companion/last_word.py`` of the viewer),
and this one waits a moment for that (``PATIENCE_S``). The one that asks is torchrun's agent, or
what started the ranks; of ranks that no traced process has started it is the last one that fails,
and the first one where the launcher kills all others then.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import shlex
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from disttrace import errors, foreign
from disttrace.config import Config
from disttrace.identity import AGENT, WORKER, Identity, file_part, launched_rank
from disttrace.journal import descriptors
from disttrace.journal.format import DEFS_SUFFIX, FAILURE, ends_with, is_of_job
from disttrace.journal.originals import poll, read
from disttrace.lifecycle import detached
from disttrace.lifecycle.companion import MemberList

PATIENCE_S, MOST_SHARES = 2.0, 5.0
"""So long the end of a job that went wrong is held up at most (0.4 s where the host is idle), and
up to so many times that where as many processes want each processor: all takes longer then.
"""

_LONGEST = 256 << 10
_MOST_LOOKED_AT = 64


def ask(config: Config, identity: Identity, *, code: int, stands: bool) -> Mapping[str, Any] | None:
    """What to announce, or None. ``code``: that of this process; ``stands``: it announced a stall
    last. Raises OSError, ValueError, RuntimeError."""
    role = identity.role
    may_speak = role == AGENT or identity.parent is None  # no process above this one will
    if not config.heartbeat or not (stands or may_speak):
        return None
    failed = code != 0
    if not failed and role not in (AGENT, WORKER):  # a process that it started may have failed
        looked_at = _journals(config, identity)[:_MOST_LOOKED_AT]
        failed = any(ends_with(path, FAILURE, b'"event":"failed"') for path in looked_at)
    if failed and (config.quiet or not may_speak):
        return None
    if not (failed or stands) or not _journals(config, identity):
        return None
    order = {  # ``EndOrder`` of ``disttrace_viewer.companion.last_word``
        "directory": identity.folder(config.dir),
        "root": config.dir,
        "job": identity.job,
        "in_names": file_part(identity.job),
        "stall_s": config.stall,
        "process": identity.process,
        "failed": failed,
        "alone": role == WORKER and launched_rank(os.environ) is None,
    }
    return _answer(order)


def _journals(config: Config, identity: Identity) -> list[str]:
    job, folder = file_part(identity.job), identity.folder(config.dir)
    names = descriptors.attempt(os.listdir, folder) or ()
    ours = (name for name in names if is_of_job(name, job) and name.endswith(DEFS_SUFFIX))
    return [os.path.join(folder, name) for name in ours]


def _answer(order: dict[str, Any]) -> Mapping[str, Any] | None:
    starter = detached.first_adopter(order["root"], os.geteuid())
    if starter not in (None, os.getpid()):
        return None  # its child it would be, and it may be waiting for its children
    with descriptors.StreamsKeptFree():
        reads, writes = os.pipe()
    try:
        with open(os.devnull, "wb") as nowhere, open(writes, "wb") as out:
            keeper = detached.start_ours(
                "disttrace_viewer.companion.last_word",
                order,
                os.environ,
                out=out.fileno(),
                err=nowhere.fileno(),
                kept=starter is not None,
            )
        answer = _read(reads)
        if keeper:
            detached.reap(keeper)
    finally:
        os.close(reads)
    found = json.loads(answer) if answer.endswith(b"\n") else None
    return found if isinstance(found, dict) else None


def _read(fd: int) -> bytes:
    """All that is written into a pipe until its other end is closed, or time is up."""
    answer = b""
    until = time.monotonic() + PATIENCE_S * min(max(_load(), 1.0), MOST_SHARES)
    polled = poll()
    polled.register(fd, select.POLLIN)
    while len(answer) < _LONGEST and (left := until - time.monotonic()) > 0:
        if polled.poll(left * 1000):
            piece = read(fd, 1 << 16)
            if not piece:
                break
            answer += piece
    return answer


def _load() -> float:
    """How many processes want each processor."""
    try:
        return os.getloadavg()[0] / (os.cpu_count() or 1)
    except foreign.ours(OSError):
        return 1.0


class ExitSummary:
    """Prints how many journals there are, where, and what to do with them."""

    def __init__(
        self,
        config: Config,
        identity: Identity,
        is_open: Callable[[], bool],
        joined_as: Callable[[], int | None],
        failed: Callable[[], bool],
    ) -> None:
        """``is_open``: it has a journal; ``joined_as``: rank in the default group, for mpirun;
        ``failed``: an exception reached the top."""
        self._config = config
        self._is_open = is_open
        self._joined_as = joined_as
        self._failed = failed
        self._identity = identity
        self._members = MemberList(config.dir)

    def install(self) -> None:
        """Print it at the end of this process, if it launched the job."""
        atexit.register(self._leave)
        if not self._config.quiet and "json" in self._config.export:
            atexit.register(self._say)

    def remove(self) -> None:
        """Print nothing: tracing ended before the process, or this is a forked child."""
        atexit.unregister(self._say)
        atexit.unregister(self._leave)

    def _leave(self) -> None:
        """Nothing of a job is left where its processes met; others clean up there, too."""
        if self._is_open():
            foreign.attempt(partial(self._members.leave, self._identity, failed=self._failed()))

    def _say(self) -> None:
        identity, joined = self._identity, self._joined_as()
        rank = identity.rank if joined is None else joined
        # Where the job began, as far as it can know by itself: torchrun's agent, a process that no
        # traced one started, and of several such ranks the first.
        launched = identity.role == AGENT or (identity.parent is None and rank in (None, 0))
        if not (self._is_open() and launched):
            return
        folder = self._config.dir
        try:
            os.stat(folder)
            count = max(1, self._members.count(self._identity))  # of this host: nothing is listed
            shown = os.path.relpath(folder)
            shown = shlex.quote(errors.plain(folder if shown.startswith("..") else shown))
            noun = "journal" if count == 1 else "journals"
            errors.tell(
                f"disttrace: {count} {noun} in {shown}; what happened: disttrace view {shown}; "
                f"what is wrong: disttrace diagnose {shown}\n",
                sys.stderr,
            )
        except foreign.ours(Exception):
            pass  # the folder is gone
