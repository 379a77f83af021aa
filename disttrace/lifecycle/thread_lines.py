"""File, line and function of every thread's frames, from a thread that is not stopped by it.

In Python 3.11 a frame has an object only once somebody asks for it, and to allocate that may start
the cycle collector, whose finalizers let other threads run. `f_back` of another thread's frame is
then a pointer into what has become of a frame that this thread has left meanwhile: an object of the
program's that is no frame, or a word of the program's that is overwritten. So frames are read in C
with the collector off (`_frames.c`). Where that was not compiled, 3.11 has them written by
``faulthandler``, which is C, too, and allocates nothing: as text, with at most 100 frames, and
slower. In 3.10 every frame is an object, and from 3.12 on the collector runs between bytecodes
alone, so there Python itself can walk.
"""

from __future__ import annotations

import functools
import opcode
import os
import re
import sys
import tempfile
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any, TypeAlias

from disttrace.journal import compiled
from disttrace.journal.code_files import BUILT_IN, is_program
from disttrace.journal.descriptors import aside, copy_aside

Line: TypeAlias = tuple[str, int, str]
Lines: TypeAlias = dict[int, list[Line]]
"""(file, line, function) by a thread's ident, innermost first; line 0: none."""

Reader: TypeAlias = Callable[[int], Lines]
"""Says where every thread stands but the one of that ident: at most 64, with 200 frames."""

Handled: TypeAlias = dict[int, tuple[str, list[str | int], list[Line]]]
"""Of the exception that a thread handles (in ``except``, ``finally`` or ``__exit__``) its class,
those of its arguments that are texts or numbers, and its lines from where it was raised; by ident.
"""

WAITING: tuple[str, ...] = (
    "accept",
    "recv",
    "recv_into",
    "recvfrom",
    "recvmsg",
    "select",
    "poll",
    "input",
    "read",
)
WAITING += ("readline", "readinto", "get", "sleep")
"""Of C, what waits for a descriptor or a queue, or lets time pass between two looks."""
_SHIFTED = {
    "LOAD_GLOBAL": int(sys.version_info >= (3, 11)),
    "LOAD_ATTR": int(sys.version_info >= (3, 12)),
    "LOAD_SUPER_ATTR": 2,
}
"""Bits of an instruction's argument below the index of its name."""
_THREADS = 64
_DEEPEST = 200
_HEAD = re.compile(r"(?:Current t|T)hread 0x([0-9a-f]+)")
_FRAME = re.compile(r'\A  File "(.*)", line (\d+|\?+) in (.*)')
_ESCAPED = re.compile(r"\\(?:x([0-9a-f]{2})|u([0-9a-f]{4})|U([0-9a-f]{8}))")


@functools.cache
def reader() -> Reader:
    """The one for this interpreter, and for what was compiled."""
    try:
        native: Any = compiled.load("lifecycle._frames")
    except ImportError:
        return dumped if sys.version_info[:2] == (3, 11) else walked

    def read(skip: int) -> Lines:
        found = native.lines(skip, _THREADS, _DEEPEST).items()
        return {ident: [*waits_in(code, lines), *lines] for ident, (code, *lines) in found}

    return read


@functools.cache
def handled_reader() -> Callable[[int], Handled] | None:
    """Says what every thread handles but the one of that ident; None where nothing was compiled: an
    exception that Python holds would die in our thread, with all that its frames hold."""
    try:
        native: Any = compiled.load("lifecycle._frames")
    except ImportError:
        return None
    return lambda skip: native.handled(skip, _THREADS, _DEEPEST)


def walked(skip: int) -> Lines:
    """Frame by frame, and no frame survives this: one that outlives its function keeps the
    function's tensors and groups, which would then die in our thread."""
    found: Lines = {}
    frames = sys._current_frames()
    frame: FrameType | None = frames.pop(skip, None)
    try:
        for ident in list(frames)[:_THREADS]:
            lines: list[Line] = []
            frame = frames.pop(ident)
            inner = frame.f_code
            while frame is not None and len(lines) < _DEEPEST:
                code = frame.f_code
                lines.append((code.co_filename, frame.f_lineno or 0, code.co_name))
                frame = frame.f_back
            found[ident] = [*waits_in(inner, lines), *lines]
    finally:
        frame = None
        frames.clear()
    return found


def waits_in(code: CodeType, lines: list[Line]) -> list[Line]:
    """What waits for the outside, of all that the program's line which runs no Python calls by
    name, as a frame of its own: C has none. Empty for a library's line."""
    if not lines or not is_program(lines[0][0]):
        return []
    names: set[str] = set()
    raw, at = code.co_code, lines[0][1]
    for start, end, line in code.co_lines():
        more = 0
        for op, low in zip(raw[start:end:2], raw[start + 1 : end : 2], strict=True):
            argument = more << 8 | low
            more = argument if op == opcode.EXTENDED_ARG else 0
            index = argument >> _SHIFTED.get(opcode.opname[op], 0)
            if line == at and op in opcode.hasname and index < len(code.co_names):
                names.add(code.co_names[index])
    return [(BUILT_IN, at, name) for name in WAITING if name in names][:1]


def dumped(skip: int) -> Lines:
    """As ``faulthandler`` writes it, into memory: its lines hold what of a name is printable ASCII,
    and the rest by number. Raises OSError where there is no file to be had."""
    import faulthandler

    file = _file()
    try:
        faulthandler.dump_traceback(file, all_threads=True)
        text = os.pread(file, os.fstat(file).st_size, 0).decode("ascii", "replace")
    finally:
        os.close(file)
    return parsed(text, skip)


def parsed(text: str, skip: int) -> Lines:
    """The lines of each thread in a dump of ``faulthandler``."""
    found: Lines = {}
    lines: list[Line] = []
    for row in text.split("\n"):
        if head := _HEAD.match(row):
            lines = []
            ident = int(head[1], 16)
            if ident != skip and len(found) < _THREADS:
                found[ident] = lines
        elif frame := _FRAME.fullmatch(row):
            line = int(frame[2]) if frame[2].isdecimal() else 0
            lines.append((_unescaped(frame[1]), line, _unescaped(frame[3])))
    return {ident: lines for ident, lines in found.items() if lines}


def _unescaped(text: str) -> str:
    return _ESCAPED.sub(lambda found: chr(int(found[1] or found[2] or found[3], 16)), text)


def _file() -> int:
    if hasattr(os, "memfd_create"):
        return aside(os.memfd_create("disttrace-stacks"))
    with tempfile.TemporaryFile(buffering=0) as file:
        return copy_aside(file.fileno())
