"""What a job does now: one picture, or one that follows it."""

from __future__ import annotations

import os
import select
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from rich.console import Group
from rich.live import Live
from rich.text import Text

from disttrace_viewer.api.reading import Paths, read
from disttrace_viewer.api.report import stall_ns
from disttrace_viewer.api.verdict import diagnose, others
from disttrace_viewer.diagnosis.announced import Other, other, with_announced
from disttrace_viewer.diagnosis.job import judged, looking_back
from disttrace_viewer.load.problems import ViewerError
from disttrace_viewer.merge.jobs import chooser, folders
from disttrace_viewer.views.terminal.console import TextConsole
from disttrace_viewer.views.terminal.diagnosis import details
from disttrace_viewer.views.terminal.top import Shares, Snapshot, activity_of, lines, snapshot_of

if TYPE_CHECKING:
    from disttrace_viewer.analysis.exchanges import Exchanges
    from disttrace_viewer.diagnosis.verdict import Verdict

EVERY_S, REST = 1.0, 3
"""So often it reads; that takes at most one part in so many and one of the time, and so does
judging."""
_REPAINTS_PER_S = 2.0
_LEAVE = (b"q", b"\x03", b"")


def show(
    path: Paths = None,
    job: str | None = None,
    *,
    stall_s: float | None = None,
    width: int | None = None,
    color: bool | None = None,
) -> None:
    """One picture on standard output, of any length."""
    out = TextConsole(width=width, color=color)
    for line in lines(snapshot(path, job, stall_s=stall_s), out.width):
        out.put(line)


def snapshot(
    path: Paths = None, job: str | None = None, *, stall_s: float | None = None
) -> Snapshot:
    """What ``diagnose`` finds, as one picture; what ranks did of late only where one still runs,
    for that takes a table of all operations.
    """
    report = diagnose(path, job, stall_s=stall_s)
    beside = [other(one.case, one.found) for one in report.others]
    activity = Shares()
    if report.case.evidence.runs:
        activity = activity_of(_exchanges(path, job))
    return snapshot_of(report.case, report.found, activity, beside)


def _exchanges(path: Paths, job: str | None) -> Exchanges:
    from disttrace_viewer.analysis.exchanges import Exchanges  # which needs Polars

    return Exchanges(read(path, job))


def follow(
    path: Paths = None,
    job: str | None = None,
    *,
    stall_s: float | None = None,
    width: int | None = None,
    color: bool | None = None,
) -> bool:
    """Pictures that fit the terminal until ``q`` or Ctrl-C; False at once where there is none.

    While there is nothing to read (``ViewerError``) the job is waited for.
    """
    out = TextConsole(width=width, color=color)
    if not out.is_terminal:
        return False
    following = _Following(path, job, stall_ns(stall_s))

    def painted() -> Group:
        return Group(*map(out.spelled, following.painted(out.width, out.height)))

    live = Live(
        console=out,
        screen=True,
        get_renderable=painted,
        refresh_per_second=_REPAINTS_PER_S,
    )
    with suppress(KeyboardInterrupt), _quit() as quits, live:  # Ctrl-C is the other way to leave
        while True:
            started = time.monotonic()
            following.read()
            spent = time.monotonic() - started
            if quits(max(EVERY_S - spent, REST * spent)):
                return True
    return True


@contextmanager
def _quit() -> Iterator[Callable[[float], bool]]:
    """Waits so many seconds for ``q`` on standard input; without a terminal there it only waits."""
    settings, fd = None, -1
    try:
        fd = sys.stdin.fileno()
        if os.isatty(fd) and _in_front(fd):
            settings = termios.tcgetattr(fd)
            tty.setcbreak(fd)
    except (OSError, ValueError, AttributeError, termios.error):
        pass  # closed, or no terminal after all

    def waited(seconds: float) -> bool:
        if settings is None:
            time.sleep(seconds)
            return False
        # Ctrl-C is a byte where a terminal was made raw, and none is there once it is gone.
        return bool(select.select([fd], [], [], seconds)[0]) and os.read(fd, 64) in _LEAVE

    try:
        yield waited
    finally:
        if settings is not None:
            with suppress(termios.error):  # the terminal is gone
                termios.tcsetattr(fd, termios.TCSADRAIN, settings)


def _in_front(fd: int) -> bool:
    """Whether this process may set the terminal; in the background that would stop it."""
    try:
        return os.tcgetpgrp(fd) == os.getpgrp()
    except OSError:
        return True  # it controls no session


class _Following:
    """What was found last; the table is read again when something was written."""

    def __init__(self, path: Paths, job: str | None, limit_ns: int) -> None:
        self._path, self._job, self._stall_ns = path, job, limit_ns
        self._found: Snapshot | str = "reading journals (q quits)"
        """Or a sentence, where there is nothing to read yet."""
        self._details: tuple[str, ...] = ()
        self._taken = self._due = 0.0
        self._active: Mapping[tuple[int, int], int] = {}
        """When each thread last did anything as the table was read."""
        self._exchanges: Exchanges | None = None
        self._activity = Shares()
        self._others: tuple[Other, ...] = ()

    def painted(self, width: int, rows: int) -> list[Text]:
        """The picture, with ages as they are by now."""
        found = self._found
        if isinstance(found, str):
            return [Text(line) for line in found.splitlines()]
        older = round((time.monotonic() - self._taken) * 1e9)
        return lines(found, width, rows, older_ns=older, details=self._details)

    def read(self) -> None:
        """By the ends of journals as they are now; what is over as it was last read."""
        now = time.monotonic()
        try:
            found = self._judged(now)
        except ViewerError as error:
            self._found = f"{error}\n\nwaiting for journals (q quits)"
            return
        values = snapshot_of(found.case, found.findings, self._activity, self._others)
        self._details = tuple(details(found.case, found.findings))
        self._found, self._taken = values, time.monotonic()

    def _judged(self, now: float) -> Verdict:
        where = folders(self._path)
        found = judged(where, choose=chooser(self._job), stall_ns=self._stall_ns)
        active = found.case.evidence.sample.active
        if self._exchanges is None or (active != self._active and now >= self._due):
            self._exchanges = None
            self._exchanges, self._active = _exchanges(self._path, self._job), active
            self._activity = activity_of(self._exchanges)
            limit_s = self._stall_ns / 1e9
            self._others = others(self._path, self._job, self._exchanges.trace, stall_s=limit_s)
            self._due = time.monotonic() + REST * (time.monotonic() - now)
        return with_announced(looking_back(found, self._exchanges) or found)
