"""What a job does now: one picture, or one that follows it."""

from __future__ import annotations

import os
import select
import sys
import termios
import threading
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
from disttrace_viewer.trace.values import dataclass
from disttrace_viewer.views.terminal.console import paper
from disttrace_viewer.views.terminal.diagnosis import details
from disttrace_viewer.views.terminal.screen import lines
from disttrace_viewer.views.terminal.top import Shares, Snapshot, activity_of, snapshot_of

if TYPE_CHECKING:
    from disttrace_viewer.analysis.exchanges import Exchanges

REST = 3
"""Reading takes at most one part in so many and one of the time, and so does judging."""
_TICK_S = 0.1
_REPAINT_S = 0.5
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
    out = paper(width=width, color=color)
    for line in lines(snapshot(path, job, stall_s=stall_s), out.width):
        out.line(line)


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
    interval_s: float = 1.0,
    stall_s: float | None = None,
    width: int | None = None,
    color: bool | None = None,
) -> bool:
    """Pictures that fit the terminal until ``q`` or Ctrl-C; False at once where there is none.

    While there is nothing to read (``ViewerError``) the job is waited for.
    """
    out = paper(width=width, color=color)
    if not out.console.is_terminal:
        return False
    following = _Following(path, job, interval_s, stall_ns(stall_s))
    try:
        with _quit() as quits, Live(console=out.console, screen=True, auto_refresh=False) as live:
            following.start()
            painted, at, left = None, float("-inf"), False
            while following.failure is None and not left:
                picture = following.picture
                if picture is not painted or time.monotonic() - at >= _REPAINT_S:
                    found = _painted(picture, out.width, out.console.height)
                    live.update(Group(*map(out.spelled, found)), refresh=True)
                    painted, at = picture, time.monotonic()
                left = quits(_TICK_S)
        if following.failure is not None:
            raise following.failure
    except KeyboardInterrupt:
        pass  # the other way to leave
    finally:
        following.leave.set()
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


def _painted(picture: _Picture | None, width: int, rows: int) -> list[Text]:
    if picture is None:
        return [Text("reading journals (q quits)")]
    if picture.values is None:
        return [Text(picture.error), Text(), Text("waiting for journals (q quits)")]
    older = round((time.monotonic() - picture.taken) * 1e9)
    return lines(picture.values, width, rows, older_ns=older, details=picture.details)


@dataclass(frozen=True, slots=True)
class _Picture:
    """What was found, and when; ``error`` where there is nothing to read yet."""

    taken: float
    values: Snapshot | None = None
    details: tuple[str, ...] = ()
    error: str = ""


class _Following(threading.Thread):
    """Reads when something was written, judges anew as time goes by, in the background."""

    def __init__(self, path: Paths, job: str | None, interval_s: float, limit_ns: int) -> None:
        super().__init__(daemon=True, name="disttrace-top")
        self.leave = threading.Event()
        self.picture: _Picture | None = None
        self.failure: Exception | None = None
        self._path, self._job = path, job
        self._interval_s, self._stall_ns = interval_s, limit_ns
        self._due = 0.0
        self._active: Mapping[tuple[int, int], int] = {}
        """When each thread last did anything as the table was read."""
        self._exchanges: Exchanges | None = None
        self._activity = Shares()
        self._others: tuple[Other, ...] = ()

    def run(self) -> None:
        """Take pictures until it is to leave."""
        while not self.leave.is_set():
            started = time.monotonic()
            try:
                self.picture = self._take()
            except ViewerError as error:
                self.picture = _Picture(time.monotonic(), error=str(error))
            except Exception as error:
                self.failure = error
                return
            spent = time.monotonic() - started
            self.leave.wait(max(self._interval_s - spent, REST * spent, _TICK_S / 2))

    def _take(self) -> _Picture:
        """By the ends of journals as they are now; what is over as it was last read."""
        where, now = folders(self._path), time.monotonic()
        found = judged(where, choose=chooser(self._job), stall_ns=self._stall_ns)
        active = found.case.evidence.sample.active
        if self._exchanges is None or (active != self._active and now >= self._due):
            self._exchanges = None
            self._exchanges, self._active = _exchanges(self._path, self._job), active
            self._activity = activity_of(self._exchanges)
            limit_s = self._stall_ns / 1e9
            self._others = others(self._path, self._job, self._exchanges.trace, stall_s=limit_s)
            self._due = time.monotonic() + REST * (time.monotonic() - now)
        found = with_announced(looking_back(found, self._exchanges) or found)
        values = snapshot_of(found.case, found.findings, self._activity, self._others)
        return _Picture(time.monotonic(), values, tuple(details(found.case, found.findings)))
