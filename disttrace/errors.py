"""Whose exception is it, and saying our own failures once.

What our guards catch was raised by us, or by something of the program's that we read: a property
of a tensor's, for example, that raises. Either way the program did not call it. But a
signal handler or Ctrl-C may strike while our code runs, and those go on to the user.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # what is made of it in signal compares handlers
import inspect
import os
import select
import signal
import sys
import types
from collections.abc import Callable
from typing import Any, TypeVar

from disttrace import foreign, redact
from disttrace.journal.originals import poll, write

HOME = os.path.dirname(os.path.abspath(__file__)) + os.sep
"""Where our own files are: frames and exceptions of these are ours, and never the user's."""

_T = TypeVar("_T")

_LONGEST = 300  # characters of an exception's first line
_FURTHER, _READ = 700, 2_000  # and of the lines behind it; how much is looked at
_PATIENCE_MS = 200  # for a reader of stderr that has much to do
_OF_WRITING = {signal.SIGTTOU, signal.SIGPIPE, signal.SIGXFSZ}
"""What a write may bring: from a terminal's background, to a pipe without a reader, and beyond the
limit of a file's size. By default each stops or ends the program."""
SCARCE = (MemoryError, RecursionError)

_TRACEBACK = "Traceback (most recent call last):"
_PYBIND = "At:"
"""Behind it pybind11 lists frames: an exception of Python that came through C++ (RPC)."""
_NATIVE = ("Exception raised from ", "C++ CapturedTraceback:", "frame #")
"""How torch begins the frames of C++ that it adds to a text."""
_LIBRARY = os.path.dirname(os.path.abspath(os.__file__)) + os.sep
_KNOWN = sys.stdlib_module_names | {"disttrace", "torch", "orjson"}
"""Whose classes of exceptions what we call may raise."""
_SILENT = ("MemoryError", "StopIteration", "Empty")
"""Those that C raises without an argument."""


def is_ours(error: BaseException) -> bool:
    """Whether ``error``, which a guard of ours caught, may be swallowed: code of ours or of those
    that it called raised it, or C did in an instruction of theirs, and it is of a class that C
    raises there. Else a signal handler did, or another thread had it raised here
    (``PyThreadState_SetAsyncExc``, which can give no argument): it loses what it bears of us, and
    goes on to the user.

    Raises RecursionError or MemoryError where too little is left to find that out.
    """
    ours, programs = foreign.is_a(error, Exception), False
    last, own, handlers = None, None, None
    for entry in foreign.entries_of(error):
        last, frame = entry, entry.tb_frame
        file = frame.f_code.co_filename
        if is_our_file(file):
            own = entry
            continue
        if handlers is None:
            handlers = [foreign.code_of(_signal.getsignal(n)) for n in signal.valid_signals()]
        if _interrupted(frame, handlers):
            foreign.set_traceback(error, entry)
            _forget_our_own(error)
            return False
        programs = programs or not _is_library(file)
    if ours and last is not None and not foreign.raises(last):
        shown = foreign.args_of(error) or foreign.type_name(error) in _SILENT
        ours = bool(shown) and foreign.is_of_library(error, _KNOWN)
    if not ours:
        if not programs and own is not None:  # the next guard of ours has to see that it struck
            own.tb_next = None
            foreign.set_traceback(error, own)
        _forget_our_own(error)
    return ours


def attempt(question: Callable[..., _T], *args: Any) -> _T | None:
    """The answer; None where the question raises by itself. What strikes meanwhile goes on."""
    try:
        return question(*args)
    except Exception as error:
        if not is_ours(error):
            raise
        return None


def _forget_our_own(error: BaseException) -> None:
    """Nothing of ours was being handled when ``error`` was raised, as far as the user knows."""
    context = foreign.context_of(error)
    while context is not None and _is_of_our_own(context):
        context = foreign.context_of(context)
        foreign.set_context(error, context)


def _is_of_our_own(error: BaseException) -> bool:
    entry = foreign.traceback_of(error)
    inner = foreign.innermost(error)
    if entry is None or inner is None:
        return False
    return all(is_our_file(each.tb_frame.f_code.co_filename) for each in (entry, inner))


def is_scarcity(error: BaseException) -> bool:
    """Whether memory or the stack had come to its end, which is no fault and may pass.

    Where C of the interpreter's returns in spite of that, a SystemError comes of it, whose cause it
    is; up to 3.11.2 enum loses that too ("error return without exception set").
    """
    cause = foreign.cause_of(error)
    return foreign.is_a(error, (*SCARCE, SystemError)) or foreign.is_a(cause, SCARCE)


def take_off(error: BaseException) -> None:
    """Take our frames off the traceback of an exception that goes on to the user.

    The outermost would else be ours: where Ctrl-C struck, or which called torch. A wrapper calls
    this while it handles ``error``; before Python 3.11 its own frame comes back with ``raise``.
    So do those of wrappers further in, which are looked for no deeper than one call goes.
    """
    kept = first = foreign.traceback_of(error)
    while first is not None and is_our_file(first.tb_frame.f_code.co_filename):
        first = first.tb_next
    if first is not kept:
        foreign.set_traceback(error, first)
    for entry in foreign.entries_of(error):
        inner = entry.tb_next
        while inner is not None and is_our_file(inner.tb_frame.f_code.co_filename):
            inner = inner.tb_next
        if inner is not entry.tb_next:
            entry.tb_next = inner


def is_of_asked(error: BaseException) -> bool:
    """Whether something of the program's raised ``error`` when we called it: a ``__hash__``, for
    example.

    Then the call at hand cannot be described, and that is no failure of ours.
    """
    traceback = foreign.innermost(error)
    if traceback is None:
        return False
    file = traceback.tb_frame.f_code.co_filename
    return not (is_our_file(file) or _is_library(file))


def is_program_file(path: str) -> bool:
    """Whether a source file is the program's own: neither a library's nor ours."""
    return not (is_our_file(path) or _is_library(path) or f"-packages{os.sep}" in path)


def _is_library(path: str) -> bool:
    if path.startswith("<frozen "):
        return True
    in_library = path.startswith(_LIBRARY) and "-packages" not in path[len(_LIBRARY) :]
    return in_library or f"{os.sep}torch{os.sep}" in path


def _interrupted(frame: types.FrameType, handlers: list[types.CodeType | None]) -> bool:
    """Whether the interpreter called this function in the middle of another: a signal handler, a
    debugger. It then got the frame of that other."""
    code = frame.f_code
    for handler in handlers:
        if code is handler:
            return True
    passed = [frame.f_locals.get(name) for name in code.co_varnames[: code.co_argcount]]
    if code.co_flags & inspect.CO_VARARGS:
        rest = frame.f_locals.get(code.co_varnames[code.co_argcount + code.co_kwonlyargcount])
        passed += rest if type(rest) is tuple else ()
    return any([type(value) is types.FrameType for value in passed])  # noqa: C419 - no generator


def is_our_file(path: str) -> bool:
    """Whether a code object's source file belongs to disttrace's recorder."""
    return type(path) is InPlace or path.startswith(HOME)


class InPlace(str):
    """The file of code of ours that a function of that file runs instead of its own.

    Who asks for that function's source is shown it; we know ours by the type. (From Python 3.13 on
    code has the one object of all texts that are equal, unless it is of a type of its own.)
    """

    __slots__ = ()

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        return str, (str.__str__(self),)


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
    except Exception as error:
        if not is_ours(error):
            raise
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
    """Write whole lines to stderr where they are taken at once; else they are lost.

    A full pipe may have no reader, and a terminal may stop a process that writes to it from the
    background: neither may hold up a program that itself prints nothing. ``stream`` is
    `sys.stderr`, or the interpreter's own from a thread of ours, where no code of the program's
    shall run.
    """
    try:
        if stream is sys.__stderr__ and stream is not None:
            stream.flush()
            _write(stream.fileno(), lines.encode(stream.encoding, "backslashreplace"))
        elif stream is not None:  # the program put something of its own there
            stream.write(lines)
            stream.flush()
    except Exception as error:
        if not is_ours(error):
            raise
        # Else it is closed, or was taken away: no reader is left.


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
