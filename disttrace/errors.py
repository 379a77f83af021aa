"""What is reported of an exception, and of our own failures, once."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # what is made of it in signal compares handlers
import os
import select
import signal
import sys
from typing import Any

from disttrace import foreign, redact
from disttrace.journal.originals import poll, write

_LONGEST = 300  # characters of an exception's first line
_FURTHER, _READ = 700, 2_000  # and of the lines behind it; how much is looked at
_PATIENCE_MS = 200  # for a reader of stderr that has much to do
_OF_WRITING = {signal.SIGTTOU, signal.SIGPIPE, signal.SIGXFSZ}
"""Signals that a write may bring (background, no reader, size), which stop or end a program."""
SCARCE = (MemoryError, RecursionError)

_TRACEBACK = "Traceback (most recent call last):"
_PYBIND = "At:"
"""Behind it pybind11 lists frames: an exception of Python that came through C++ (RPC)."""
_NATIVE = ("Exception raised from ", "C++ CapturedTraceback:", "frame #")
"""How torch begins the frames of C++ that it adds to a text."""


def is_scarcity(error: BaseException) -> bool:
    """Whether memory or the stack had come to its end, which may pass. C of the interpreter may
    make a SystemError of it, whose cause it is; up to 3.11.2 enum loses that too."""
    cause = foreign.cause_of(error)
    return foreign.is_a(error, (*SCARCE, SystemError)) or foreign.is_a(cause, SCARCE)


def take_off(error: BaseException) -> None:
    """Take our frames off the traceback of an exception that goes on to the user.

    The outermost would else be ours: where Ctrl-C struck, or which called torch. A wrapper calls
    this while it handles ``error``; before Python 3.11 its own frame comes back with ``raise``.
    So do those of wrappers further in, which are looked for no deeper than one call goes: to leave
    one out, the interpreter walks through all that lies below it.
    """
    kept = first = foreign.traceback_of(error)
    while first is not None and foreign.is_our_code(first.tb_frame.f_code):
        first = first.tb_next
    if first is not kept:
        foreign.set_traceback(error, first)
    entries = foreign.entries_of(error)
    if len(entries) == foreign.MOST:
        return
    for entry in entries:
        inner = entry.tb_next
        while inner is not None and foreign.is_our_code(inner.tb_frame.f_code):
            inner = inner.tb_next
        if inner is not entry.tb_next:
            entry.tb_next = inner


def is_of_program(error: BaseException) -> bool:
    """Whether the program's own code (a ``__hash__``), which we called, raised ``error``."""
    traceback = foreign.innermost(error)
    if traceback is None:
        return False
    code = traceback.tb_frame.f_code
    return not (foreign.is_our_code(code) or foreign.is_library(code.co_filename))


def is_program_file(path: str) -> bool:
    """Whether a source file is the program's own: neither a library's nor ours."""
    return not (
        foreign.is_our_file(path) or foreign.is_library(path) or f"-packages{os.sep}" in path
    )


def first_line(error: BaseException) -> str:
    """``Type: first line with a word in it`` of an exception, secrets masked, at most 300
    characters: of a long one the end, too, for there often stands what was wrong. A text with a
    traceback in it (a loader's worker failed, a child of spawn, a rank in a checkpoint, a function
    of RPC) has that in its last line. The program makes no text for us (`foreign.text_of`).
    """
    return line_of(foreign.type_name(error), foreign.text_of(error))


def line_of(name: str, text: str) -> str:
    """The same of an exception's class and text."""
    try:
        lines = list(map(str.strip, text.split("\n")))
        if _PYBIND in lines:
            lines = lines[: lines.index(_PYBIND)]
        saying = [line for line in lines if any(map(str.isalnum, line))]
        shown = saying[0] if saying else ""
        if any(_TRACEBACK in line for line in saying):
            shown = saying[-1] if shown.endswith(_TRACEBACK) else f"{shown} {saying[-1]}"
        text = redact.current.text(shown)
    except foreign.ours(Exception):
        text = "(its text cannot be read)"
    return _both_ends(f"{name}: {text}" if text else name, _LONGEST)


def further_lines(error: BaseException) -> list[str]:
    """The lines behind the first one with a word in it, secrets masked: DDP, checkpoints and
    validators tell there which parameter it was. Of many the last ones, 700 characters in all.
    """
    text, room = foreign.text_of(error), _FURTHER
    kept: list[str] = []
    for frames in _NATIVE:
        text = text.partition(f"\n{frames}")[0]
    if _TRACEBACK in text:
        return []
    lines = map(str.strip, redact.current.text(text[-_READ:]).split("\n"))
    for line in reversed([line for line in lines if any(map(str.isalnum, line))][1:]):
        if room < _FURTHER // 10:
            break
        kept.append(_both_ends(line, room))
        room -= len(line)
    return kept[::-1]


def _both_ends(text: str, most: int) -> str:
    end = most // 3
    return text if len(text) <= most else f"{text[: most - end - 5]} ... {text[-end:]}"


def plain(text: str) -> str:
    r"""``text`` on one line that no terminal obeys: ``\x1b`` for what cannot be seen."""
    if text.isprintable():
        return text
    shown = (c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    return "".join(shown)


class Reporter:
    """Reports each failure of a part once, in one sentence on stderr."""

    def __init__(self) -> None:
        self._said: set[str] = set()

    def report(self, part: str, sentence: str) -> bool:
        """Print ``sentence`` unless ``part`` had one before; True if it was printed."""
        if part in self._said:
            return False
        self._said.add(part)
        tell(f"disttrace: {plain(redact.current.text(sentence))}\n", sys.stderr)
        return True


def tell(lines: str, stream: Any) -> None:
    """Write whole lines to stderr (``stream``, or the interpreter's own from a thread of ours)
    where they are taken at once; else they are lost. A full pipe may have no reader, and a terminal
    may stop who writes from the background: neither may hold up a program that prints nothing."""
    try:
        if stream is sys.__stderr__ and stream is not None:
            stream.flush()
            _write(stream.fileno(), lines.encode(stream.encoding, "backslashreplace"))
        elif stream is not None:  # the program put something of its own there
            stream.write(lines)
            stream.flush()
    except foreign.ours(Exception):
        pass  # it is closed, or was taken away: no reader is left


def _write(fd: int, data: bytes) -> None:
    # Of a pipe that can be written to at all, so much is free.
    pieces = [data[at : at + select.PIPE_BUF] for at in range(0, len(data), select.PIPE_BUF)]
    mask, pending = _signal.pthread_sigmask, _signal.sigpending
    held, waited = mask(signal.SIG_BLOCK, ()), pending()
    try:
        mask(signal.SIG_BLOCK, _OF_WRITING)
        for piece in pieces:
            polled = poll()
            polled.register(fd, select.POLLOUT)
            if not polled.poll(_PATIENCE_MS):
                return
            write(fd, piece)
    finally:
        ours = pending() & _OF_WRITING - waited
        if ours and sys.platform != "darwin":
            _signal.sigtimedwait(ours, 0)
        mask(signal.SIG_SETMASK, held)


def passes_on(error: BaseException, context: BaseException) -> bool:
    """Whether ``error``, raised while ``context`` was handled, is about that.

    A program that asks a store for something optional, catches the time-out and goes on fails by
    itself when it fails then; Python notes the time-out as its context all the same. One that has
    ``raise`` in its handler, or asks for its end there, tells of what it caught; so does a library
    that raises one of its own in the place of another, inside the call that the program made.
    """
    caught = foreign.traceback_of(context)
    if caught is None or not foreign.is_a(error, Exception):
        return True  # unknown where, or it is a way to leave
    handler = caught.tb_frame
    if not is_program_file(handler.f_code.co_filename):
        return True
    for raised in foreign.entries_of(error):
        if raised.tb_frame is handler:
            return raised.tb_next is None and foreign.raises(raised)
    return True
