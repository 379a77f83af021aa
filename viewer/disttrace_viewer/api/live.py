"""What a job does now: one picture, or one that follows it."""

from __future__ import annotations

import os
import select
import sys
import termios
import threading
import time
import tty
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from disttrace_viewer.api.reading import Paths, read
from disttrace_viewer.api.report import stall_ns
from disttrace_viewer.api.verdict import diagnose, others
from disttrace_viewer.diagnosis.announced import Other, other, with_announced
from disttrace_viewer.diagnosis.job import judged, looking_back
from disttrace_viewer.load.problems import ViewerError
from disttrace_viewer.merge.jobs import chooser, folders
from disttrace_viewer.views.terminal.console import TextConsole, paper
from disttrace_viewer.views.terminal.diagnosis import details
from disttrace_viewer.views.terminal.diagnosis import lines as report_lines
from disttrace_viewer.views.terminal.screen import SORTS, Selection, lines
from disttrace_viewer.views.terminal.top import Shares, Snapshot, activity_of, snapshot_of

if TYPE_CHECKING:
    from disttrace_viewer.analysis.exchanges import Exchanges

REST = 3
"""Reading takes at most one part in so many and one of the time, and so does judging."""
_TICK_S = 0.1
_REPAINT_S = 0.5


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
        with Keyboard() as keys, Live(console=out.console, screen=True, auto_refresh=False) as live:
            following.start()
            _Screen(out, live, keys, following).run()
    except KeyboardInterrupt:
        pass  # the other way to leave
    finally:
        following.leave.set()
    return True


@dataclass(frozen=True, slots=True)
class _Picture:
    """What was found, and when; ``error`` where there is nothing to read yet."""

    taken: float
    values: Snapshot | None = None
    report: tuple[str, ...] = ()
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
        report, beside = (tuple(of(found.case, found.findings)) for of in (report_lines, details))
        return _Picture(time.monotonic(), values, report, beside)


class _Screen:
    """What is shown, and what keys do."""

    def __init__(self, out: TextConsole, live: Live, keys: Keyboard, following: _Following) -> None:
        self._out, self._live, self._keys, self._following = out, live, keys, following
        self._look = Selection()
        self._report_at: int | None = None
        """The first line of the diagnosis that is shown; None: the positions are."""

    def run(self) -> None:
        """Paint and listen until the key to leave."""
        painted: _Picture | None = None
        at = float("-inf")
        while True:
            picture = self._following.picture
            if self._following.failure is not None:
                raise self._following.failure
            if picture is not painted or time.monotonic() - at >= _REPAINT_S:
                self._live.update(self._paint(picture), refresh=True)
                painted, at = picture, time.monotonic()
            key = self._keys.wait(_TICK_S)
            if key is None:
                continue
            if not self._on(key, picture):
                return
            at = float("-inf")

    def _on(self, key: str, picture: _Picture | None) -> bool:
        """Do what a key asks for; False: leave."""
        look, page = self._look, max(1, self._out.console.height - 4)
        step = {"up": -1, "down": 1, "page up": -page, "page down": page}.get(key)
        if self._report_at is not None:
            if key in ("q", "d", "escape"):
                self._report_at = None
            elif step is not None:
                self._report_at = max(0, self._report_at + step)
            return True
        if key == "q":
            return False
        if picture is None or picture.values is None:
            return True
        if step is not None:
            look.cursor = max(0, look.cursor + step)
        elif key == "s":
            look.sort = SORTS[(SORTS.index(look.sort) + 1) % len(SORTS)]
        elif key == "enter":
            look.toggle(picture.values)
        elif key == "r":
            look.all_ranks, look.cursor = not look.all_ranks, 0
        elif key == "d":
            self._report_at = 0
        return True

    def _paint(self, picture: _Picture | None) -> RenderableType:
        width, rows = self._out.width, self._out.console.height
        if picture is None:
            found = [Text("reading journals (q quits)")]
        elif picture.values is None:
            found = [Text(picture.error), Text(), Text("waiting for journals (q quits)")]
        elif self._report_at is not None:
            found = self._report(picture.report, width, rows)
        else:
            older = round((time.monotonic() - picture.taken) * 1e9)
            values, beside = picture.values, picture.details
            found = lines(values, width, rows, look=self._look, older_ns=older, details=beside)
        return Group(*(self._out.spelled(line) for line in found))

    def _report(self, report: tuple[str, ...], width: int, rows: int) -> list[Text]:
        console = self._out.console
        whole = [line for text in report for line in (Text(text).wrap(console, width) or [Text()])]
        room = max(1, rows - 1)
        self._report_at = max(0, min(self._report_at or 0, len(whole) - room))
        below = len(whole) - room - self._report_at
        more = f"  {below} more lines" if below > 0 else ""
        keys = Text(f" q back  j, k, space scroll{more}", "dim")
        return [*whole[self._report_at : self._report_at + room], keys]


_NAMES = {
    b"\x1b[A": "up",
    b"\x1b[B": "down",
    b"\x1bOA": "up",
    b"\x1bOB": "down",
    b"\x1b[5~": "page up",
    b"\x1b[6~": "page down",
    b"\r": "enter",
    b"\n": "enter",
    b"\x1b": "escape",
    b"\x03": "q",  # Ctrl-C where the terminal was made raw
    b"k": "up",
    b"j": "down",
    b" ": "page down",
}


class Keyboard:
    """Keys of standard input while inside ``with``; without a terminal there it only waits."""

    def __init__(self) -> None:
        self._settings: list[Any] | None = None
        self._held = b""

    def __enter__(self) -> Keyboard:
        try:
            self._fd = sys.stdin.fileno()
            if os.isatty(self._fd) and _in_front(self._fd):
                self._settings = termios.tcgetattr(self._fd)
                tty.setcbreak(self._fd)
                chosen = termios.tcgetattr(self._fd)
                # Who stops it by Ctrl-Z or Ctrl-\\ would be left with a screen that is not theirs.
                for name in (termios.VSUSP, termios.VQUIT):
                    chosen[6][name] = b"\0"
                termios.tcsetattr(self._fd, termios.TCSADRAIN, chosen)
        except (OSError, ValueError, AttributeError, termios.error):
            pass  # closed, or no terminal after all: then there are no keys
        return self

    def __exit__(self, *_: object) -> None:
        if self._settings is not None:
            with suppress(termios.error):  # the terminal is gone
                termios.tcsetattr(self._fd, termios.TCSADRAIN, self._settings)

    def wait(self, seconds: float) -> str | None:
        """The next key by its name, or None after so long; ``q`` when the terminal is gone."""
        if self._settings is None:
            time.sleep(seconds)
            return None
        if not self._held:
            if not select.select([self._fd], [], [], seconds)[0]:
                return None
            with suppress(OSError):
                self._held = os.read(self._fd, 64)
        return self._next() if self._held else "q"

    def _next(self) -> str:
        for length in (4, 3):
            if self._held[:length] in _NAMES:
                key, self._held = self._held[:length], self._held[length:]
                return _NAMES[key]
        if self._held[:2] in (b"\x1b[", b"\x1bO"):
            self._held = b""  # a key that means nothing here
            return ""
        key, self._held = self._held[:1], self._held[1:]
        return _NAMES.get(key, key.decode("latin-1"))


def _in_front(fd: int) -> bool:
    """Whether this process may set the terminal; in the background that would stop it."""
    try:
        return os.tcgetpgrp(fd) == os.getpgrp()
    except OSError:
        return True  # it controls no session
