"""What a job does now: one picture, or one that follows it."""

from __future__ import annotations

import os
import select
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

from rich.console import Group
from rich.text import Text

from disttrace_viewer.api.reading import Paths, read
from disttrace_viewer.api.verdict import diagnose
from disttrace_viewer.diagnosis.announced import other
from disttrace_viewer.load.problems import ViewerError
from disttrace_viewer.views.terminal.console import TextConsole
from disttrace_viewer.views.terminal.diagnosis import details
from disttrace_viewer.views.terminal.top import Shares, Snapshot, activity_of, lines, snapshot_of

EVERY_S, REST = 1.0, 3
"""So often it reads; that takes at most one part in so many and one of the time."""
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
    return _looked(path, job, stall_s)[0]


def _looked(path: Paths, job: str | None, stall_s: float | None) -> tuple[Snapshot, Sequence[str]]:
    """The picture, and what stands beside its first finding."""
    report = diagnose(path, job, stall_s=stall_s)
    beside = [other(one.case, one.found) for one in report.others]
    activity = Shares()
    if report.case.evidence.runs:
        from disttrace_viewer.analysis.exchanges import Exchanges  # which needs Polars

        activity = activity_of(Exchanges(read(path, job)))
    values = snapshot_of(report.case, report.found, activity, beside)
    return values, [*details(report.case, report.found)]


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
    from rich.live import Live

    out = TextConsole(width=width, color=color)
    if not out.is_terminal:
        return False
    found: tuple[Snapshot, Sequence[str]] | str = "reading journals (q quits)"
    taken = 0.0

    def painted() -> Group:
        """With ages as they are by now."""
        if isinstance(found, str):
            return Group(*map(Text, found.splitlines()))
        older = round((time.monotonic() - taken) * 1e9)
        rows = lines(found[0], out.width, out.height, older_ns=older, details=found[1])
        return Group(*map(out.spelled, rows))

    live = Live(
        console=out,
        screen=True,
        get_renderable=painted,
        refresh_per_second=2.0,
    )
    with suppress(KeyboardInterrupt), _quit() as quits, live:  # Ctrl-C is the other way to leave
        while True:
            started = time.monotonic()
            try:
                found = _looked(path, job, stall_s)
            except ViewerError as error:
                found = f"{error}\n\nwaiting for journals (q quits)"
            taken = time.monotonic()
            if quits(max(EVERY_S, REST * (taken - started))):
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
