"""Where every thread is while nothing begins or ends, and which exception it handles there.

In Python 3.11 a frame has an object only once it is requested, and to allocate that may start the
cycle collector, whose finalizers let other threads run. `f_back` of another thread's frame is then
a pointer into what has become of a frame that this thread has left meanwhile: an object of the
program's that is no frame, or a word of the program's that is overwritten. So frames are read in C
with the collector off (`_frames.c`). Where that was not compiled, 3.11 has them written by
``faulthandler``, which is C, too, and allocates nothing: as text, with at most 100 frames, and
slower. In 3.10 every frame is an object, and from 3.12 on the collector runs between bytecodes
alone, so there Python itself can walk.
"""

from __future__ import annotations

import dis
import functools
import opcode
import os
import re
import sys
import tempfile
from collections.abc import Callable, Sequence
from types import CodeType, FrameType
from typing import Any, TypeAlias

from disttrace import errors, foreign
from disttrace.capture.wrapping.context import Capture
from disttrace.journal import compiled
from disttrace.journal.code_files import BUILT_IN, LOOP, is_program, waits_for_input
from disttrace.journal.descriptors import aside, copy_aside
from disttrace.journal.originals import get_ident

Line: TypeAlias = tuple[str, int, str]
Lines: TypeAlias = dict[int, list[Line]]
"""(file, line, function) by a thread's ident, innermost first; line 0: none."""

Reader: TypeAlias = Callable[[int], Lines]
"""Gives where every thread stands but the one of that ident: at most 64, with 200 frames."""

Handled: TypeAlias = dict[int, tuple[str, list[str | int], list[Line]]]
"""Of the exception that a thread handles (in ``except``, ``finally`` or ``__exit__``) its class,
those of its arguments that are texts or numbers, and its lines from where it was raised; by ident.
"""

WAITING: tuple[str, ...] = ("accept", "recv", "recv_into", "recvfrom", "recvmsg", "select", "poll")
WAITING += ("input", "read", "readline", "readinto", "next", "sigwaitinfo", "sigtimedwait", "pause")
WAITING += ("get", "sleep", "run_until_complete", "run_forever")
"""Of C, what waits for a descriptor, a signal or a queue, or lets time pass between two looks."""
_SHIFTED = {
    "LOAD_GLOBAL": int(sys.version_info >= (3, 11)),
    "LOAD_ATTR": int(sys.version_info >= (3, 12)),
    "LOAD_SUPER_ATTR": 2,
}
"""Bits of an instruction's argument below the index of its name."""
_ACTS = ("DELETE", "FOR_ITER", "IMPORT", "SEND", "STORE", "YIELD")
"""Heads of the names of instructions that change what others see."""
_WORKS = {"BINARY", "CALL", "COMPARE", "INPLACE"}
"""Of those that do anything with what a loop takes next."""
LOOKS: tuple[str, ...] = ("is_set", "empty", "full", "qsize", "len", "locked", "acquire", "done")
LOOKS += ("ready", "running", "cancelled", "is_alive", "exists", "isfile", "is_file", "access")
LOOKS += ("item", "check", "sleep")
"""Calls that look whether others have changed something. No clock: a loop that looks at one ends.
"""
_THREADS = 64
_DEEPEST = 200
_LONGEST = 1 << 16  # bytes of a function in which a loop is looked for
_INNER = 8
"""So many frames may the library have between a look and the program's loop; as in `_frames.c`."""
_HEAD = re.compile(r"(?:Current t|T)hread 0x([0-9a-f]+)")
_FRAME = re.compile(r'\A  File "(.*)", line (\d+|\?+) in (.*)')
_ESCAPED = re.compile(r"\\(?:x([0-9a-f]{2})|u([0-9a-f]{4})|U([0-9a-f]{8}))")


@functools.cache
def _native() -> Any:
    try:
        return compiled.load("lifecycle._frames")
    except foreign.ours(ImportError):
        return None


def reader() -> Reader:
    """The one for this interpreter, and for what was compiled."""
    native = _native()
    if native is None:
        return dumped if sys.version_info[:2] == (3, 11) else walked

    def read(skip: int) -> Lines:
        found = native.lines(skip, _THREADS, _DEEPEST).items()
        return {ident: [*waits_in(codes, lines), *lines] for ident, (codes, *lines) in found}

    return read


def handled_reader() -> Callable[[int], Handled] | None:
    """Gives what every thread handles but the one of that ident; None where nothing was compiled:
    an exception that Python holds would die in our thread, with all that its frames hold."""
    native = _native()
    return None if native is None else lambda skip: native.handled(skip, _THREADS, _DEEPEST)


def walked(skip: int) -> Lines:
    """Frame by frame; none is kept, for its tensors and groups would die in our thread."""
    found: Lines = {}
    frames = sys._current_frames()
    frame: FrameType | None = frames.pop(skip, None)
    try:
        for ident in list(frames)[:_THREADS]:
            lines: list[Line] = []
            frame = frames.pop(ident)
            inner: list[CodeType] = []
            while frame is not None and len(lines) < _DEEPEST:
                code = frame.f_code
                if not foreign.is_our_code(code):
                    inner += [code] if len(inner) < _INNER else []
                    lines.append((code.co_filename, frame.f_lineno or 0, code.co_name))
                frame = frame.f_back
            found[ident] = [*waits_in(inner, lines), *lines]
    finally:
        frame = None
        frames.clear()
    return found


def waits_in(codes: Sequence[CodeType], lines: list[Line]) -> list[Line]:
    """Frames that stand for what has none, on top of the others. What waits for the outside, of all
    that the program's line calls by name where no Python runs beyond it; and the loop there that
    changes nothing, and calls at most what looks whether something has changed."""
    inner = zip(codes, lines, strict=False)
    found = ((code, n) for n, (code, line) in enumerate(inner) if is_program(line[0]))
    code, n = next(found, (None, 0))
    if code is None:
        return []
    raw, at = code.co_code, lines[n][1]
    parts = [(start, end) for start, end, line in code.co_lines() if line == at]
    steps: list[tuple[int, str]] = []
    for start, end in parts:
        more = 0
        for op, low in zip(raw[start:end:2], raw[start + 1 : end : 2], strict=True):
            argument = more << 8 | low
            more = argument if op == opcode.EXTENDED_ARG else 0
            index = argument >> _SHIFTED.get(opcode.opname[op], 0)
            named = op in opcode.hasname and index < len(code.co_names)
            steps.append((op, code.co_names[index] if named else ""))
    heads = [opcode.opname[op].partition("_")[0] for op, _ in steps]
    names = {name for _, name in steps}
    if "FOR" in heads and not _WORKS.intersection(heads[heads.index("FOR") :]):
        names.add("next")  # the lines of a file
    shown = [(BUILT_IN, at, name) for name in WAITING if name in names and not n][:1]
    if not _acts(steps) and len(raw) <= _LONGEST:
        shown += [(LOOP, line, "") for part in parts if (line := _turns(code, *part))][:1]
    return shown


def _acts(steps: Sequence[tuple[int, object]]) -> bool:
    """Whether instructions, given with their names, change what others see, or may do so."""
    acts = any(opcode.opname[op].startswith(_ACTS) for op, _ in steps)
    calls = sum(opcode.opname[op].startswith("CALL") for op, _ in steps)
    return acts or calls > sum(name in LOOKS for _, name in steps)


def _turns(code: CodeType, start: int, end: int) -> int:
    """A line of the shortest loop around all parts in which is only looked; 0: none."""
    steps = [*dis.get_instructions(code)]
    jumps = {*dis.hasjrel, *dis.hasjabs}
    loops = [
        (one.offset - one.argval, one.argval, one.offset)
        for one in steps
        if one.opcode in jumps and one.argval < end and start <= one.offset >= one.argval
    ]
    _, first, last = min(loops, default=(0, 0, -1))
    inside = [
        (one.opcode, one.argval if one.opcode in opcode.hasname else "")
        for one in steps
        if first <= one.offset <= last
    ]
    if not inside or _acts(inside):
        return 0
    return next((line for at, to, line in code.co_lines() if at <= first < to and line), 0)


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


QUIET_NS = 900_000_000
"""Nanoseconds without a begin or an end after which stacks are taken: from one look to the next."""

_SOONEST_NS = 2_000_000_000
_LATEST_NS = 10_000_000_000
_EARLY_NS = 400_000_000
"""After so long the places of threads at work are noted: others may give up after a second."""
PAUSE_NS = 500_000_000
"""Between two looks, so that this one comes in time."""
_SHORTEST_NS = 50_000_000  # of both, where a group's own time limit is shorter
_DEPTH = 16
_MOST = 4_000  # definitions are never dropped, and a rank that computes stands elsewhere each time
_MOST_EARLY = 1_000  # of them: a step of a second is noted each time
_LONG_NS = 30_000_000_000  # a silence that is worth another stack beyond those
_MOST_HANDLED = 200  # of what is noted of exceptions
_HARMLESS = ("ImportError", "ModuleNotFoundError")
"""In the handlers of these programs do their work."""
_LONG = 20_000  # characters of an exception's text that are looked at
_BITS = 200  # of a number that is shown: `str` refuses very long ones


class Stacks:
    """Takes the stack of every thread while nothing begins or ends, and notes what changed."""

    def __init__(self, capture: Capture) -> None:
        self._capture = capture
        self._read = reader()
        self._handled = _Handled(capture)
        self._progress = (0, 0)
        self._since = 0  # when the progress was first seen as it is; 0: not yet
        self._due = 0
        self._early = True  # these threads' places are still to be noted in this silence
        self._noted: dict[int, int] = {}  # stack number by thread number
        self._last: dict[int, list[Line]] = {}  # at the last look while operations began and ended
        self._newest = 0  # the highest number of a stack that was written from here
        self._written = 0  # so many stacks were first seen here

    @property
    def pause_ns(self) -> int:
        """Until the next look: half a second, or a quarter of the shortest limit of a group."""
        limit_ns = self._capture.groups.shortest_limit_ns
        if limit_ns is None:
            return PAUSE_NS
        return max(_SHORTEST_NS, min(PAUSE_NS, limit_ns // 4))

    def look(self, now: int) -> None:
        """Now and then; ``now`` is in nanoseconds of any steady clock."""
        progress = self._capture.recorder.progress()
        most = 2 * _MOST if now - self._since >= _LONG_NS else _MOST
        if progress != self._progress or not self._since:
            self._progress, self._since, self._due = progress, now, now + QUIET_NS
            self._early = True
            self._noted.clear()
            self._look_at_work()
        elif now >= self._due and self._written < most:
            self._due = now + min(max((now - self._since) // 2, _SOONEST_NS), _LATEST_NS)
            self._early = False
            self.take()
        elif self._early and now - self._since >= min(_EARLY_NS, self.pause_ns * 4 // 5):
            self._early = False
            if self._written < _MOST_EARLY:
                for thread, lines in self._at_work().items():
                    self._note(thread, lines)

    def take(self) -> None:
        """Note where every thread is, now."""
        number = self._numbers()
        for ident, lines in self._read(get_ident()).items():
            self._note(number(ident), lines)
        self._handled.take(number)

    def _look_at_work(self) -> None:
        """While operations go on: note a thread that has not moved, or waits for input."""
        last, self._last = self._last, self._at_work()
        for thread, lines in self._last.items():
            waits = bool(lines) and waits_for_input(lines[0][0], lines[0][2])
            if (waits or (lines and lines == last.get(thread))) and self._written < _MOST:
                self._note(thread, lines)

    def _at_work(self) -> dict[int, list[Line]]:
        """The lines of the main thread and of those that issued operations, by number."""
        number, recorder = self._numbers(), self._capture.recorder
        at_work = {recorder.main_ident, *recorder.issuing}
        found = self._read(get_ident()).items()
        return {number(ident): lines for ident, lines in found if ident in at_work}

    def _numbers(self) -> Callable[[int], int]:
        """The number of a thread by its ident."""
        known = foreign.threads()
        recorder = self._capture.recorder

        def number(ident: int) -> int:
            if ident == recorder.main_ident:
                return recorder.main_thread()
            return recorder.thread_number(ident, *known.get(ident, ("", None)))

        return number

    def _note(self, thread: int, lines: list[Line]) -> None:
        recorder = self._capture.recorder
        stack = recorder.stack(self._shown(lines)) if lines else 0
        if self._noted.get(thread) == stack:
            return
        self._noted[thread] = stack
        if stack > self._newest:
            self._newest = stack
            self._written += 1
        recorder.sampled(thread, stack)

    def _shown(self, lines: list[Line]) -> list[Line]:
        """At most 16 lines; where the program's lie deeper, half of them from there on."""
        lines = [line for line in lines if not foreign.is_our_file(line[0])]
        if len(lines) <= _DEPTH:
            return lines
        sites = self._capture.sites
        for ours in (sites.is_programs, lambda file: not sites.is_torch(file)):
            own = next((n for n, line in enumerate(lines) if ours(line[0])), None)
            if own is not None:
                break
        if own is None or own < _DEPTH - 1:
            return lines[:_DEPTH]
        return lines[: _DEPTH // 2] + lines[own : own + _DEPTH // 2]


class _Handled:
    """Notes which exception a thread handles, and that it no longer does."""

    def __init__(self, capture: Capture) -> None:
        self._capture = capture
        self._read = handled_reader()
        self._noted: dict[int, tuple[str, str, int]] = {}  # by thread number
        self._left = _MOST_HANDLED

    def take(self, number: Callable[[int], int]) -> None:
        """Of all threads; ``number`` gives a thread's by its ident."""
        if self._read is None:
            return
        recorder, found = self._capture.recorder, {}
        for ident, (name, args, lines) in self._read(get_ident()).items():
            if name not in _HARMLESS and lines and not foreign.is_our_file(lines[-1][0]):
                text = errors.line_of("", _text(args)).partition(": ")[2]
                stack = recorder.stack([e for e in lines if not foreign.is_our_file(e[0])][:_DEPTH])
                found[number(ident)] = (name.rpartition(".")[2], text, stack)
        for thread in {*found, *self._noted}:
            now = found.get(thread)
            if now == self._noted.get(thread) or not self._left:
                continue
            self._left -= 1
            if now is None:
                del self._noted[thread]
                recorder.note("handling", h=thread)
            else:
                self._noted[thread] = now
                recorder.note("handling", h=thread, type=now[0], text=now[1], stack=now[2])


def _text(args: Sequence[str | int]) -> str:
    """As `str` of most exceptions, and raises nothing whatever they hold."""
    shown = [
        one[:_LONG] if isinstance(one, str) else str(one) if one.bit_length() <= _BITS else "..."
        for one in args[:_DEPTH]
    ]
    if len(args) == 2 and isinstance(args[0], int):
        return f"[Errno {shown[0]}] {shown[1]}"
    return ", ".join(shown)
