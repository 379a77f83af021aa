"""Single keys from a terminal, which gets its settings back however the program ends."""

from __future__ import annotations

import os
import select
import signal
import sys
import termios
import time
import tty
from types import FrameType, TracebackType
from typing import Any

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
    b"\x03": "q",  # Ctrl-C where somebody has made the terminal raw
    b"k": "up",
    b"j": "down",
    b" ": "page down",
}
_ENDS = (signal.SIGTERM, signal.SIGHUP)


class Ended(BaseException):
    """A signal asks the program to end; the argument is its number."""


class Keyboard:
    """Keys of standard input while inside ``with``; without a terminal there it only waits.

    SIGTERM and SIGHUP raise ``Ended`` meanwhile, so that what was set up is taken down.
    """

    def __init__(self) -> None:
        self._settings: list[Any] | None = None
        self._handlers: dict[signal.Signals, Any] = {}
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
        for number in _ENDS:
            self._handlers[number] = signal.signal(number, _end)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        if self._settings is not None:
            try:
                termios.tcsetattr(self._fd, termios.TCSADRAIN, self._settings)
            except termios.error:
                pass  # the terminal is gone

    def wait(self, seconds: float) -> str | None:
        """The next key by its name, or None after so long; ``q`` when the terminal is gone."""
        if not self._held:
            if self._settings is None:
                time.sleep(seconds)
                return None
            if not select.select([self._fd], [], [], seconds)[0]:
                return None
            try:
                self._held = os.read(self._fd, 64)
            except OSError:
                return "q"
            if not self._held:
                return "q"
        return self._next()

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


def _end(number: int, frame: FrameType | None) -> None:
    raise Ended(number)
