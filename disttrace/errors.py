"""Whose exception is it, and saying our own failures once.

An exception is ours only if its innermost Python frame is in our files: a signal handler, a
time-out or Ctrl-C may strike while our code runs, and those go on to the user.
"""

from __future__ import annotations

import os
import sys

from disttrace import redact

HOME = os.path.dirname(os.path.abspath(__file__)) + os.sep
"""Where our own files are: frames and exceptions of these are ours, and never the user's."""


def is_ours(error: BaseException) -> bool:
    """Whether ``error`` was raised by disttrace itself and may be swallowed."""
    if not isinstance(error, Exception):
        return False
    traceback = error.__traceback__
    if traceback is None:
        return True
    while traceback.tb_next is not None:
        traceback = traceback.tb_next
    return traceback.tb_frame.f_code.co_filename.startswith(HOME)


def is_our_file(path: str) -> bool:
    """Whether a source file belongs to disttrace's recorder."""
    return path.startswith(HOME)


def first_line(error: BaseException, *, limit: int = 300) -> str:
    """``Type: first line`` of an exception, secrets masked, at most ``limit`` characters."""
    try:
        text = redact.current.text(str(error).partition("\n")[0].strip())
    except Exception:
        text = "(its text cannot be read)"
    name = type(error).__name__
    return f"{name}: {text}"[:limit] if text else name


class Reporter:
    """Says each failure of a part once, in one sentence on stderr."""

    def __init__(self) -> None:
        self._said: set[str] = set()

    def say(self, part: str, sentence: str) -> bool:
        """Print ``sentence`` unless something was said about ``part``; True if it was printed."""
        if part in self._said:
            return False
        self._said.add(part)
        try:
            sys.stderr.write(f"disttrace: {redact.current.text(sentence)}\n")
            sys.stderr.flush()
        except (OSError, ValueError, AttributeError):
            pass  # stderr is closed or was taken away: there is nobody left to tell
        return True
