"""Logs of a job as journals of its ranks: lines of watchdogs, of torch's checks, of NCCL and of
launchers, exceptions, and torchrun's folder of logs. Which lines: ``forms``.

A log is of all ranks or of some: who is in it are so many ranks at least, never all of them.
"""

from __future__ import annotations

import contextlib
import itertools
import re
import time
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import prod
from typing import Any

from disttrace.journal.code_files import is_library
from disttrace.journal.format import EQUAL_SIZES, UNKNOWN_OP
from disttrace_viewer.load import files
from disttrace_viewer.load.discover import Files
from disttrace_viewer.load.foreign import forms, py_spy
from disttrace_viewer.load.foreign import lines as texts
from disttrace_viewer.load.foreign.forms import (
    Called,
    Log,
    LoggedFailure,
    LoggedGroup,
    Speaker,
    Statement,
)
from disttrace_viewer.load.foreign.lines import LogLine, Prefixes
from disttrace_viewer.load.foreign.records import COUNTS_LACK, Records
from disttrace_viewer.load.problems import Problems, plural
from disttrace_viewer.trace.operation import is_closed, is_echo, is_time_out
from disttrace_viewer.trace.plain_text import whole
from disttrace_viewer.trace.values import dataclass, replace

NAME = "log"
_NAMES = re.compile(
    r"\.(log|out|err|txt|stdout|stderr|[oe]\d{1,9})(\.\d{1,4})?$"
    r"|(^|/)[^./]{0,80}(stdout|stderr|console|output|log)[^./]{0,80}$",
    re.IGNORECASE,
)
_DIGITS = bytes.maketrans(b"123456789", b"000000000")
_TROUBLE = (
    "error", "fail", "time out", "timed out", "timeout", "time-out", "warn", "abort", "kill",
    "signal", "exception", "terminat", "cancel", "died", "missing", "stall",
)  # fmt: skip
_OF_STACKS = ('File "', "ecent call first", "Timeout (")
_CUES = (
    "Traceback", "Error", "Exception", "Interrupt", "above exception", "ProcessGroupNCCL.cpp:",
    *sorted({cue for cues, *_ in forms.FORMS for cue in cues}),
)  # fmt: skip
"""Words of which a line has one that begins anything."""
_STACKS = (
    re.compile(
        r"Process \d{1,18}: |Thread \w{1,40} \((?:active|idle)"
        r"|^    [^\s()][^()]{0,250} \([^()]{1,250}:\d{1,9}\)\s*$"
    ),
    py_spy.HEADING,
)
"""Of py-spy's stacks in a log; one of both takes ten times as long."""
_TRACEBACK = re.compile(r"Traceback \(most recent call last\)(?:: \(RANK (\d{1,7})\))?")
_FRAME = re.compile(r'\s{0,32}File "([^"]{1,1000})", line (\d{1,9}), in (\S{1,300})')
_BOX = re.compile(r"[│|] (.{10,250}?) [│|]\s*$")
_BOXED = re.compile(r"(/[^:]{1,250}):(\d{1,9}) in (\S{1,300})")
"""A frame as rich prints it; a long path goes on in the next line."""
_ERROR = re.compile(r"(\w[\w.]{0,200})(?:: |\Z)")
_CLASS = re.compile("Error|Exception|Interrupt|Exit|Warning")
_CHAINED = ("During handling of the above exception", "The above exception was the direct cause")
_NAMED = re.compile(
    r"did not receive grad for rank (\d{1,7})|^\[?Rank (\d{1,7})\]?:? successfully"
    r"|on ranks\. Rank (\d{1,7}) is running"
    r"|on rank: (\d{1,7}),|^\[Rank (\d{1,7})\]"
)
_OWN_ENDS = frozenset({-4, -7, -8, -9, -11})
"""Signals that end a process by itself: torchrun sends SIGTERM, a watchdog aborts."""
_PASSED_ON = frozenset({1, -2, -6, -15})
"""Codes of what ends because of others: by an exception, a watchdog, a launcher."""
_BLOCK = 4 << 20
_MOST_STRANGE = 10_000
_ODD = ("utf-8", "surrogateescape")
_HEAD = 12
"""Letters of a line that tell whether an earlier one was printed by the same rank."""
_NUMBERS = re.compile("[0-9]+")
_RECENT, _WENT_ON, _PATIENCE = 2000, 3, 500
"""Lines looked back at; repeats that show that it goes on; lines by which it has ended."""
_LONGEST = 2000
"""Letters of a statement of the watchdog's."""
_FEW = 40
"""Lines of what is the error itself, and no log around it."""


def recognises(path: str, head: bytes) -> bool:
    """By a name that logs have, and text; whether it tells anything shows when it is read."""
    name = path.lower()
    if name.endswith("/error.json"):
        return b'"message"' in head
    return _NAMES.search(name) is not None and b"\0" not in head.lstrip(b"\0")


def read(paths: Sequence[str], problems: Problems) -> Iterator[Files]:
    """One process per rank of which the logs tell something."""
    log, read_paths = Log(), _of_the_last_attempt(paths, problems)
    first, named = _first_ranks(read_paths), _by_names(read_paths)
    for path in read_paths:
        place, base = _torchrun(path), first[_host(path)]
        own = named.get(path) if place is None or base is None else base + place[1]
        try:
            _take(log, path, own, base)
        except OSError as error:
            problems.add(path, "unreadable", f"cannot be read ({error.strerror}); left out.")
    found = [*_journals(log, read_paths[0], problems)]
    if not found:
        problems.add(read_paths[0], "silent", _silence(log))
    yield from found


def _torchrun(path: str) -> tuple[int, int] | None:
    """Attempt and rank of a file in torchrun's ``--log-dir``."""
    *_, attempt, rank, _ = ["", "", "", *path.split("/")]
    number, own = whole(attempt.removeprefix("attempt_")), whole(rank)
    known = attempt.startswith("attempt_") and number is not None and own is not None
    return (number or 0, own or 0) if known else None


def _host(path: str) -> str:
    """What the files of one launcher have in common."""
    return path if _torchrun(path) is None else path.rsplit("/", 3)[0]


_OF_NAME = re.compile(r"(?i)(?:.{0,255}[^a-z/])?rank[_=-]?(\d{1,7})(?:[._-][^/]{0,255})?")


def _by_names(paths: Sequence[str]) -> dict[str, int]:
    """Ranks by names of files, of which there are several (it may be that of a LoRA)."""
    names = ((path, _OF_NAME.fullmatch(path.rpartition("/")[2])) for path in paths)
    found = {path: int(name[1]) for path, name in names if name is not None}
    return found if 1 < len({*found.values()}) > max(found.values()) // 2 else {}


_BOTH = re.compile(
    rb"\[[A-Za-z_]{1,40}(\d{1,7})\]: ?(?:\[rank|[^\n]{0,200}?\(default_pg\) Rank )(\d{1,7})\]"
)
_OF_SUMMARY = re.compile(rb"rank {0,8}: (\d{1,7}) \(local_rank: (\d{1,7})\)")
_GLOBAL = re.compile(rb"\[rank(\d{1,7})\]:")
_LOCAL = re.compile(rb"(?m)^.{0,99}?\[default(\d{1,7})\]:")
_WORLD = re.compile(rb"(?i)world[_ ]size['\"]?(?: of)?[\s=:]{0,3}(\d{1,7})\b")
_ENDS = 256 << 10


def _first_ranks(paths: Sequence[str]) -> dict[str, int | None]:
    """By host the rank of its first process, by lines that tell a local rank and the global one;
    None where they tell several, or none while there are other hosts.
    """
    found: dict[str, set[int]] = {}
    locals_, worlds = set[int](), {1}
    for path in paths:
        of, place = found.setdefault(_host(path), set()), _torchrun(path)
        try:
            late = max(_ENDS, files.size(path) - _ENDS)
            text = files.part(path, 0, _ENDS) + files.part(path, late, _ENDS)
        except OSError:
            continue
        if place is not None:
            of |= {int(rank) - place[1] for rank in _GLOBAL.findall(text)}
        of |= {int(rank) - int(local) for local, rank in _BOTH.findall(text)}
        of |= {int(rank) - int(local) for rank, local in _OF_SUMMARY.findall(text)}
        locals_ |= {*map(int, _LOCAL.findall(text))}
        worlds |= {*map(int, _WORLD.findall(text))}
    several = 1 < len(locals_) == max(locals_) + 1 < max(worlds)
    alone = len(found) == 1 and not (several and max(worlds) % len(locals_) == 0)
    return {
        host: next(iter(of)) if len(of) == 1 else 0 if alone and not of else None
        for host, of in found.items()
    }


def _of_the_last_attempt(paths: Sequence[str], problems: Problems) -> list[str]:
    attempts = {p: found[0] for p in paths if (found := _torchrun(p)) is not None}
    newest = max(attempts.values(), default=0)
    if newest and len({*attempts.values()}) > 1:
        first = next(iter(attempts))
        problems.add(first, "older", f"and others are of attempts before {newest}; left out.")
    return [path for path in paths if attempts.get(path, newest) == newest]


def _silence(log: Log) -> str:
    """Why the lines do not have the reason for the end of the job."""
    if {one["kind"] for one in log.reports.values()} == {"analyzer"}:
        return (
            "is an output of torch's analyzer of Flight Recorder dumps, and no evidence by itself:"
            " give the folder of the dumps."
        )
    if log.strange:
        count = sum(log.strange.values())
        most = "; ".join(f"`{text}`" for text, _ in log.strange.most_common(3))
        of = f"of {plural(log.lines, 'line')} {count:,} report errors in no known form"
        trouble = f"{of}, most often {most}"
    else:
        trouble = f"{plural(log.lines, 'line')}, no error"
    if log.statements:
        trouble = "its watchdogs give ranks within subgroups, and no global ones"
    if log.outside:
        trouble = f"its launcher got {log.outside} from outside, and ended its ranks; {trouble}"
    for speaker, found in [*log.caught.items()][:1]:
        who = f"rank {speaker}" if isinstance(speaker, int) else "the job"
        trouble += f"; {who} went on after {found[0].type}: {found[0].text[:200]}"
    return f"does not show why the job ended: {trouble}."


def _pieces(path: str) -> Iterator[list[str]]:
    """The lines of a file, some thousands at once."""
    rest, start = b"", 0
    while piece := files.part(path, start, _BLOCK):
        start += len(piece)
        whole, cut, rest = (rest + piece).rpartition(b"\n")
        if not cut and len(rest) > 4 * _BLOCK:
            whole, rest = rest, b""
        if whole:
            yield texts.plain(whole.decode("utf-8", "replace"))
    if rest:
        yield texts.plain(rest.decode("utf-8", "replace"))


def _marks(lines: Sequence[str]) -> Iterator[tuple[bool, bool, bool, bool]]:
    """Of each line whether it may begin anything, is of a stack, speaks of trouble, and is to be
    looked at. Most are not: where polars is installed it finds all words in one scan.
    """
    try:
        import polars as pl
    except ImportError:
        for one in lines:
            stack = any(word in one for word in _OF_STACKS) or any(f.search(one) for f in _STACKS)
            told = stack or any(map(one.__contains__, _CUES)) or bool(texts.LOST.match(one))
            yield told, stack, any(map(one.lower().__contains__, _TROUBLE)), True
        return
    column = pl.Series(lines)
    stacks = column.str.contains_any([*_OF_STACKS])
    for form in _STACKS:
        stacks |= column.str.contains(form.pattern)
    begins = column.str.contains_any([*_CUES]) | stacks
    begins |= column.str.contains(f"^(?:{texts.LOST.pattern})")
    troubled = column.str.contains_any([*_TROUBLE], ascii_case_insensitive=True)
    fresh = column.str.head(_HEAD).is_first_distinct()
    masks = (begins, stacks, troubled, begins | troubled | fresh)
    yield from zip(*(mask.to_list() for mask in masks), strict=True)


def _take(log: Log, path: str, own: int | None, first: int | None) -> None:
    """Take a file's lines; ``own``: the rank of all; ``first``: the host's first rank."""
    year = time.gmtime(files.modified_ns(path) // 1_000_000_000).tm_year
    prefixes: Prefixes | None = None
    width = None
    seen: set[str] = set()
    nothing: set[bytes] = set()
    strange: Counter[bytes] = Counter()
    reader = _LogReader(log, path, own, first)
    dumped: list[str] = []
    for piece in _pieces(path):
        if prefixes is None:
            prefixes, width = Prefixes(piece[:200], year), texts.width(piece[:5000])
        log.lines += len(piece)
        lines = texts.joined(piece, *width) if width else piece
        for raw, (look, of_stack, trouble, any_of_it) in zip(lines, _marks(lines), strict=True):
            waits = reader.waits
            reader.before.append(raw)
            if reader.failed and not (look or waits):
                reader.goes_on(raw, prefixes)
            if not (any_of_it or waits):
                continue
            if look or waits:
                if ('File "' in raw and '", line ' not in raw) or texts.LOST.match(raw):
                    waits = True  # wrapped where nobody can tell
                    log.open.clear()
                    while dumped and "ecent call first" not in dumped.pop():
                        pass
                    dumped.append(raw)
                elif of_stack:
                    dumped.append(raw)
                    waits = True
                # A line that differs by numbers alone from one that told nothing tells nothing.
                shape = _shape(raw)
                if waits or shape not in nothing:
                    if reader.take(prefixes.strip(raw)) or of_stack:
                        continue
                    if not (waits or reader.waits) and len(nothing) < _MOST_STRANGE:
                        nothing.add(shape)
            if trouble:
                shape = _shape(raw[:_LONGEST])
                if shape in strange or len(strange) < _MOST_STRANGE:
                    strange[shape] += 1
            if raw[:_HEAD] not in seen and len(seen) < 4096:
                seen.add(raw[:_HEAD])
                reader.rank(prefixes.strip(raw))
    for shape, count in strange.items():
        assert prefixes is not None
        bare = prefixes.strip(shape.decode(*_ODD)).text.strip()
        log.strange[re.sub("0+", "N", bare)[:120]] += count
    log.open.clear()
    log.entry, log.last = None, ""
    with contextlib.suppress(ValueError):  # of threads without a frame
        text = "\n".join(dumped[-_MOST_STRANGE:]).encode(*_ODD)
        for one in py_spy.of_text(path, text, first):
            log.dumped.append(replace(one, rank=own) if one.rank is None else one)


def _shape(raw: str) -> bytes:
    """A line but for its digits."""
    return raw.encode(*_ODD).translate(_DIGITS)


class _LogReader:
    """Takes the lines of one file."""

    def __init__(self, log: Log, path: str, own: int | None, first: int | None) -> None:
        self.log, self.own, self._first = log, own, first
        self.before: deque[str] = deque(maxlen=_RECENT)
        self.failed: dict[Speaker, int] = {}
        """Who printed an exception, and how many lines as of before it came after it."""
        self._life: frozenset[str] = frozenset()
        """Shapes of lines before the first exception."""
        self._ignored: set[Speaker] = set()
        self._path = path
        self._by = "" if own is not None or _torchrun(path) is None else path
        self._chained: set[Speaker] = set()
        self._torn: LogLine | None = None
        self.waits = False
        """Whether any line may belong to something that has begun."""
        self._patience = 0
        log.entry, log.last = None, path

    def rank(self, line: LogLine) -> int | None:
        """The one that printed a line; it is noted."""
        if line.rank is None and line.local is not None and self._first is not None:
            line.rank = self._first + line.local
        if line.rank is None:
            line.rank = self.own
        if line.rank is not None:
            self.log.ranks.add(line.rank)
        return line.rank

    def goes_on(self, raw: str, prefixes: Prefixes) -> None:
        """An exception after which a rank prints what it printed before was caught."""
        if _NUMBERS.sub("0", raw) in self._life and "%|" not in raw:
            speaker = self._speaker(line := prefixes.strip(raw))
            if speaker in self.failed and _NUMBERS.search(line.text):
                self.failed[speaker] += 1
                if self.failed[speaker] == _WENT_ON * (3 if speaker == "" else 1):
                    del self.failed[speaker]
                    self.log.caught[speaker] = self.log.failures.pop(speaker, [LoggedFailure()])

    def _speaker(self, line: LogLine) -> Speaker:
        rank = self.rank(line)
        return (line.by or self._by) if rank is None else rank

    def take(self, line: LogLine) -> bool:
        """Whether a line tells anything."""
        log, known = self.log, self._take(line)
        self._patience = _PATIENCE if known else self._patience - 1
        if self._patience < 0:  # what has begun has no end
            log.open.clear()
            log.entry, log.last = None, self._path
        self.waits = bool(log.open or log.entry or self._torn or log.last != self._path)
        return known

    def _take(self, line: LogLine) -> bool:
        log, torn = self.log, self._torn
        wordings = [line.text]
        if torn is not None and not (line.rank or line.by or line.text.startswith("[")):
            # A statement that was wrapped; a space at its end may be lost.
            wordings = [torn.text + line.text, f"{torn.text} {line.text}"]
            line = torn
        self._torn, speaker = None, self._speaker(line)
        log.deduplicated |= line.times > 1
        if line.bar:
            forms.came(log)
        known = self._traceback(speaker, line)
        for line.text in reversed(wordings):
            for cues, form, take in (*forms.FOLLOWING, *forms.FORMS):
                found = any(cue in line.text for cue in cues) and form.search(line.text)
                if found and take(log, line, speaker, found):
                    return True
        if not known and "ProcessGroupNCCL.cpp:" in line.text and len(line.text) < _LONGEST:
            self._torn = line
        return known

    def _traceback(self, speaker: Speaker, line: LogLine) -> bool:
        log, text = self.log, line.text
        if text.startswith(_CHAINED):
            self._chained.add(speaker)
            return True
        if text.startswith("Exception ignored in") or "rror waiting on exit barrier" in text:
            self._ignored.add(speaker)
            return True
        if (begin := _TRACEBACK.search(text)) is not None:
            indent, of = begin.start(), whole(begin[1] or "")
            log.open[speaker] = LoggedFailure(at_ns=line.at_ns, indent=indent, of=of)
            return True
        current = log.open.get(speaker)
        if current is None:
            return self._alone(line)
        if _FRAME.match(text):
            current.indent = min(current.indent, max(0, len(text) - len(text.lstrip()) - 2))
        text = text[current.indent :]
        if frame := _FRAME.match(text):
            current.frames.insert(0, (frame[1], int(frame[2]), frame[3]))
            return True
        if (box := _BOX.search(line.text)) is not None:
            current.torn, current.indent = current.torn + box[1].strip(), 0
            if frame := _BOXED.fullmatch(current.torn):
                current.frames.insert(0, (frame[1], int(frame[2]), frame[3]))
            if frame or not box[1].strip():
                current.torn = ""
            return True
        error = _ERROR.match(text.rstrip()) if text[:1].strip() else None
        if error is None or _CLASS.search(error[1].rpartition(".")[2]) is None:
            return True
        del log.open[speaker]
        current.type, current.text = error[1].rpartition(".")[2], text[error.end() :].rstrip()
        current.at_ns = line.at_ns or current.at_ns
        self._close(speaker, current)
        return True

    def _alone(self, line: LogLine) -> bool:
        """The last line of a traceback alone, if its rank is known or it is torch's own."""
        error = _ERROR.match(line.text)
        name = "" if error is None else error[1].rpartition(".")[2]
        if error is None or not name.endswith(("Error", "Exception", "KeyboardInterrupt")):
            return False
        failure = LoggedFailure(name, line.text[error.end() :].rstrip(), at_ns=line.at_ns)
        speaker: Speaker = line.by if line.rank is None else line.rank
        if (line.rank is None and not _echoes(failure)) or self.log.failures.get(speaker):
            self.log.bare.append(failure)
            return False
        self._close(speaker, failure)
        return True

    def _close(self, speaker: Speaker, failure: LoggedFailure) -> None:
        log = self.log
        analyzes = any("/flight_recorder/" in file for file, *_ in failure.frames)
        if analyzes or speaker in self._ignored:
            self._ignored.discard(speaker)
            return
        if failure.of is not None:
            speaker = failure.of
        elif isinstance(speaker, str) and isinstance(log.last, int):
            speaker = log.last  # ``-- Process 1 terminated with the following error``
        elif isinstance(speaker, str) and (named := _NAMED.search(failure.text)) is not None:
            speaker = int(next(group for group in named.groups() if group))
        found = log.failures.setdefault(speaker, [])
        if speaker in self._chained:
            self._chained.discard(speaker)
            lost = bool(found) and is_closed(found[-1].text)  # which the launcher's own names
            if found and found[-1].text and not (lost and failure.type.startswith("Rendezvous")):
                return  # what was handled then is why
            found.clear()
        if isinstance(speaker, int):
            log.ranks.add(speaker)
        self._life = self._life or frozenset(_NUMBERS.sub("0", one) for one in self.before)
        self.failed[speaker] = 0
        found.append(failure)


# -- what follows from it --------------------------------------------------------------------


def _echoes(failure: LoggedFailure) -> bool:
    """Whether an exception passes on that others went away, or did not come."""
    if failure.type == _INTERRUPT or _CUT_SHORT.fullmatch(failure.text):
        return True
    inner = failure.frames[0][0] if failure.frames else ""
    native = not inner or is_library(inner) or _NATIVE.search(failure.sentence) is not None
    return is_echo(failure.sentence) and native


def _waited(failure: LoggedFailure) -> bool:
    """Whether an exception is of a rank that waited, for what its frames or its text tell."""
    broken = _BROKEN.search(failure.text) is not None
    return not broken and bool(failure.frames or is_time_out(failure.text))


_BROKEN = re.compile("unhandled system error|internal error|unhandled cuda error")
"""Of NCCL: an operation that did not wait, but could not begin or go on."""
_INTERRUPT = "KeyboardInterrupt"
_OF_LAUNCHERS = (
    "ChildFailedError", "SystemExit", "CalledProcessError", "ProcessExitedException",
    "SignalException",
)  # fmt: skip
_ENDED = re.compile(r"process \d{1,7} terminated with ")
_CUT_SHORT = re.compile(r"\[[^\]]{0,400}")
"""The text of C++ code whose end was lost: it may be an echo."""
_NATIVE = re.compile(r"\.cc:\d|\.cpp:\d|gloo|NCCL|c10d|TCPStore|monitoredBarrier|DistBackend")
"""In texts of C++ code of torch."""


Failures = dict[int, LoggedFailure]


def _sides(log: Log) -> tuple[Failures, Failures, list[LoggedFailure]]:
    """Failures of ranks that are their own, and that echo others'; those of no known rank."""
    own: Failures = {}
    echoes: Failures = {}
    unnamed: list[LoggedFailure] = []
    for speaker, found in log.failures.items():
        mine = [one for one in found if not _echoes(one)]
        mine = [one for one in mine if one.type not in ("ChildFailedError", "SystemExit")]
        passed = [one for one in found if _echoes(one)]
        if isinstance(speaker, str):
            unnamed += [
                one for one in mine if one.type not in _OF_LAUNCHERS and not _ENDED.match(one.text)
            ]
        elif mine:
            own[speaker] = mine[0]
        elif passed:
            echoes[speaker] = max(passed, key=lambda one: bool(one.frames))
    known = {(one.type, one.text) for one in own.values()}
    unnamed = [*{(u.type, u.text): u for u in unnamed if (u.type, u.text) not in known}.values()]
    first = [rank for rank, end in log.ends.items() if end.first and end.code == 1]
    if len(unnamed) == 1 and len(first) == 1 and first[0] not in (*own, *echoes):
        own[first[0]] = unnamed.pop()  # the only exception of its own that anybody printed
    return own, echoes, unnamed


def _journals(log: Log, path: str, problems: Problems) -> Iterator[Files]:
    if any((log.failures, log.bare, log.statements, log.ends, log.local_ends, log.outside,
            log.stuck, log.dumped, log.calls)):  # fmt: skip
        forms.came(log)
    reported, uncounted = _reported(log.statements)
    if not (log.failures or log.statements):
        log.failures = log.earlier
    own, echoes, unnamed = _sides(log)
    killed = _killed(log)
    if killed:  # whose crash it is that a process without a rank reports
        unnamed = [one for one in unnamed if one.type != "Fatal Python error"]
    for speaker, found in () if own else log.caught.items():
        # Unless it was its buffer that came late.
        if isinstance(speaker, str) and (echoes or log.ends or log.local_ends):
            unnamed.append(found[0])
        elif (
            isinstance(speaker, int)
            and speaker not in reported
            and (echoes or reported or speaker in log.ends)
        ):
            own[speaker] = found[0]
    if log.called:
        for rank in log.called:
            echoes.pop(rank, None)
            if rank in own:
                log.failures[rank] = [own.pop(rank)]
    alone = not (own or echoes or killed or reported or log.called or log.reports or log.dumped)
    if alone and not unnamed and log.lines <= _FEW:
        unnamed = log.bare[:1]
    for failure in unnamed:
        log.report("failed", type=failure.type, text=failure.text[:1000],
                   frames=failure.frames[:16])  # fmt: skip
    stacks = {one.rank: one for one in log.dumped if one.rank is not None and not log.fatal}
    nameless = [] if log.fatal else _nameless(log, path)
    if len(nameless) < 2 and log.ranks - {*echoes, *log.ends}:
        nameless = []
    if not (own or killed or log.called or stacks or len(nameless) > 1):
        _report_ends(log, {*reported, *echoes, *(rank for rank, _ in log.stuck)})
    parted = _parted_calls(log)
    waits = any(one.work for groups in reported.values() for one in groups.values())
    if log.stuck:
        rows = [
            {"rank": rank, "group": name, **numbers}
            for (rank, name), numbers in sorted(log.stuck.items())
        ]
        log.report("stuck", of=rows, beside=waits or bool(own))
    if not (own or killed or reported or unnamed or log.called or log.reports or log.job_said):
        mute = (one for key, its in log.failures.items() if isinstance(key, str) for one in its)
        passed = [*echoes.values()]
        passed += [one for one in mute if one.type not in (*_OF_LAUNCHERS, _INTERRUPT)]
        peers = {"peers": sorted(log.peers)[:8]} if log.peers else {}
        if (passed or peers) and all(is_closed(one.text) for one in passed):
            log.report("lost", ranks=sorted(echoes), ended=_silent(log, echoes), **peers)
        elif passed and not any(_waited(one) for one in echoes.values()):
            log.report("lost", ranks=sorted(echoes), text=passed[0].sentence[:300], **peers)
    if not (own or killed or reported or log.called):
        largest = max((size for _, size, _ in log.comms.values()), default=0)
        for (size, _), begun in log.begun.items():
            # Who is of no host whose lines are here may have come: hosts have equally many ranks.
            odd = size % (max(begun) - min(begun) + 1)
            missing = [r for r in range(size) if odd or min(begun) < r < max(begun)]
            missing = sorted({*missing} - begun) if size == largest else []
            if len(begun) < size:
                log.report("begun", came=sorted(begun), missing=missing, world=size)
    compared = (
        (c.op, c.shape and prod(c.shape) * (c.op in EQUAL_SIZES), c.dtype)
        for c in log.called.values()
    )
    if log.called and all(len({*column} - {None}) < 2 for column in zip(*compared, strict=True)):
        of = {rank: "x".join(map(str, c.shape)) for rank, c in log.called.items() if c.shape}
        log.report("differ", ranks=sorted(log.called), op=next(iter(log.called.values())).op,
                   shapes=sorted(of.items()) if len({*of.values()}) > 1 else [])  # fmt: skip
    came = {one.get("rank") for one in log.reports.values() if one["kind"] == "reached"}
    for one in log.reports.values():
        if one["kind"] == "absent" and {*one["ranks"]} <= came:
            one["kind"] = "reached"  # each of two names the other one, and either may be late
    for one in _resolved(log.job_said, files.modified_ns(path)):
        log.report("said", said=one)
    reports = tuple(one for one in log.reports.values() if one["kind"] != "analyzer")
    concerned = {r["rank"] for r in reports if type(r.get("rank")) is int}
    if not reported:  # beside counts they would be of ranks that had enqueued nothing
        concerned |= {row["rank"] for r in reports for row in r.get("of", ())}
    concerned |= {rank for r in reports for rank, *_ in r.get("others", ())}
    absent = {rank for r in reports if r["kind"] == "absent" for rank in r["ranks"]}
    concerned |= {rank for r in reports for rank in r.get("came", ())}
    ranks = {*reported, *own, *killed, *log.called, *parted, *concerned}
    world = max([*log.ranks, *ranks, *echoes, *absent, -1]) + 1
    world = max(world, log.world, log.whole or 0)
    if nameless and not (ranks or reports or stacks or echoes):
        py_spy.tell_guesses(nameless, path, problems)
        yield from py_spy.translated(nameless, kind=NAME, world=world, whole=log.whole)
        return
    if not (ranks or reports or stacks) and not echoes:
        return
    if (echoes or stacks) and not {*reported, *own, *killed, *log.called, *parted}:
        given_up = [one for one in _samples(log, path, echoes) if one.rank not in stacks]
        if all(is_time_out(one.error) for one in given_up) and not stacks:
            given_up += [
                py_spy.ProcessSample(path, rank, (), rank) for rank in _silent(log, echoes)
            ]
        yield from py_spy.translated(
            [*stacks.values(), *given_up], kind=NAME, world=world, whole=log.whole, reports=reports,
        )  # fmt: skip
        return
    facts = _Facts(log, reported, uncounted, own, echoes, killed, parted, path, world)
    rest = list(reports)
    for rank in sorted({*ranks, *echoes}) or [None]:
        yield facts.journal(rank, rest)
        rest = []


def _nameless(log: Log, path: str) -> list[py_spy.ProcessSample]:
    """Stacks of which no line tells the rank, those of interrupts too."""
    found = [one for one in log.dumped if one.rank is None]
    for speaker, several in log.failures.items():
        for one in several:
            files_of = [file for file, _, _ in one.frames]
            if isinstance(speaker, str) and one.type == _INTERRUPT and py_spy.is_of_rank(files_of):
                found.append(py_spy.ProcessSample(path, 0, one.frames))
    return found


def _silent(log: Log, echoes: Mapping[int, LoggedFailure]) -> list[int]:
    """The rank that printed lines and no error, where all others did: they waited for it, or lost
    it."""
    world = max(log.world, log.whole or 0)
    if all(is_time_out(one.text) for one in echoes.values()):
        world = max(world, *(rank + 1 for rank in log.ranks), 0)
    found = [rank for rank in range(world) if rank not in echoes]
    aborted = {rank for rank, end in log.ends.items() if end.code == -6}  # by a check of its own
    known = {*log.ranks, *log.ends} - aborted
    alone = len(found) == 1 and found[0] in known and not log.deduplicated
    return found if alone and echoes and max(echoes) < world else []


def _killed(log: Log) -> dict[int, int]:
    """Ranks that a signal ended first, as their launcher reports."""
    ends = {r: e.code for r, e in log.ends.items() if e.code in _OWN_ENDS}
    first = {r: c for r, c in ends.items() if log.ends[r].first}
    if not first and not any(end.first for end in log.ends.values()) and len(ends) == 1:
        first = ends
    return {rank: code for rank, code in first.items() if code is not None}


def _report_ends(log: Log, waited: set[int]) -> None:
    """What launchers tell, where no exception and no wait tells more."""
    ends = {rank: end for rank, end in log.ends.items() if end.first or end.code is not None}
    if not ends and not waited:
        local = {r: e for r, e in log.local_ends.items() if e.code not in (None, 0)}
        known = {r: e for r, e in local.items() if r is not None} or local
        if known:
            log.report("local", ends=[[r, e.code] for r, e in known.items()])
        return
    first = [rank for rank, end in ends.items() if end.first]
    if len(first) > 1:  # by several launchers: two hosts have two clocks
        times = sorted((ends[rank].at_ns, rank) for rank in first)
        apart = times[0][0] and times[0][0] < times[1][0]
        chosen = [rank for rank in first if ends[rank].code not in _PASSED_ON | {None}]
        one_host = [times[0][1]] if apart and len({ends[r].host for r in first}) == 1 else []
        first = chosen if len(chosen) == 1 else one_host
    if first and first[0] not in waited:
        root = ends[first[0]]
        others = [
            [rank, end.code, end.at_ns - root.at_ns if end.at_ns and root.at_ns else None]
            for rank, end in sorted(ends.items(), key=lambda item: (item[1].at_ns, item[0]))
            if rank != first[0]
        ]
        log.report("root", rank=first[0], code=root.code, at_ns=root.at_ns, others=others)
    elif ends and not first and not waited:
        log.report("ends", ends=[[rank, end.code] for rank, end in sorted(ends.items())])


def _resolved(notes: Sequence[Mapping[str, Any]], modified_ns: int) -> Iterator[dict[str, Any]]:
    """What the job reported itself; ``over`` where it went on after that."""
    last = max((n for n, one in enumerate(notes) if one["kind"] == "going on"), default=-1)
    for number, one in enumerate(notes):
        found = {**one, "over": number <= last}
        clock = found.pop("clock", None)
        if not found["at"]:
            found["at"] = modified_ns / 1e9
            if clock:
                day = time.localtime(found["at"])
                hour, minute, second = map(int, clock.split(":"))
                at = time.mktime((*day[:3], hour, minute, second, 0, 0, -1))
                found["at"] = at if at <= found["at"] + 1 else at - 86_400
        yield found


def _parted_calls(log: Log) -> dict[int, list[Called]]:
    """By rank what NCCL's lines tell of the largest communicator, where its ranks have parted: they
    called other things under one number, or one has called less than all others.
    """
    size = max((comm[1] for key, comm in log.comms.items() if key in log.calls), default=0)
    of_size = [key for key in log.calls if log.comms[key][1] == size]
    devices = len({key[0].rpartition("[")[0].rpartition(":")[0] for key in of_size}) == 1
    found: dict[int, list[Called]] = {}
    for key in of_size:
        rank = log.comms[key][0]
        if rank < 0 and devices:  # all of one host: its devices are the ranks
            rank = int(key[0].rpartition("[")[2].rstrip("]"))
        ids = {log.comms[other][2] for other in of_size}
        if rank < 0 or rank in found or len(ids) > 1:
            return {}
        found[rank] = [*log.calls[key]]
    if len(found) < 2 or any(
        a.seq == b.seq for its in found.values() for a, b in itertools.pairwise(its)
    ):
        return {}  # of one host NCCL 2.27 counts none, and one number is of all that is grouped
    rows = _by_number(found)
    last = Counter(calls[-1].seq for calls in found.values())
    behind = len(last) == 2 and last[max(last)] == len(found) - 1 > 1
    log.whole = size if len(found) == size else log.whole
    _left_out(log, found)
    parted = behind or any(len(row) > 1 for row in rows.values())
    if parted and 0 in rows:  # journals count from 1 on
        found = {r: [replace(one, seq=one.seq + 1) for one in its] for r, its in found.items()}
    return found if parted else {}


def _by_number(found: Mapping[int, Sequence[Called]]) -> dict[int, set[tuple[Any, ...]]]:
    """What ranks called under each number."""
    rows: dict[int, set[tuple[Any, ...]]] = {}
    for one in itertools.chain(*found.values()):
        rows.setdefault(one.seq, set()).add((one.op, one.shape, one.dtype))
    return rows


def _left_out(log: Log, found: Mapping[int, Sequence[Called]]) -> None:
    """Note where one rank called what all others called next."""
    for rank, calls in found.items():
        others = [{one.seq: one for one in its} for r, its in found.items() if r != rank]
        for one in calls:
            here = {(o[one.seq].op, o[one.seq].shape) for o in others if one.seq in o}
            after = {(o[one.seq + 1].op, o[one.seq + 1].shape) for o in others if one.seq + 1 in o}
            if len(here) == len(after) == 1 < len(others) and (one.op, one.shape) not in here:
                if (one.op, one.shape) in after:
                    op, shape = next(iter(here))
                    log.report("left_out", rank=rank, op=op, seq=one.seq, next=one.op,
                               elements=shape[0] if shape else 0)  # fmt: skip
                break


def _samples(
    log: Log, path: str, echoes: Mapping[int, LoggedFailure]
) -> list[py_spy.ProcessSample]:
    """Where ranks were when they gave up, or were interrupted."""
    found = []
    dumped = {one.rank: one.frames for one in log.dumped}
    for rank, one in echoes.items():
        if one.type == _INTERRUPT and not one.frames:
            continue
        frames = one.frames or dumped.get(rank, ())
        error = None if one.type == _INTERRUPT else one.sentence
        at_ns = one.at_ns or files.modified_ns(path)
        idle = is_time_out(error) or None  # until then it waited
        found.append(
            py_spy.ProcessSample(path, rank, frames, rank, idle=idle, at_ns=at_ns, error=error)
        )
    return found


@dataclass(slots=True)
class _Facts:
    """What a log holds, on its way to being journals."""

    log: Log
    reported: Ranks
    uncounted: frozenset[LoggedGroup]
    own: Mapping[int, LoggedFailure]
    echoes: Mapping[int, LoggedFailure]
    killed: Mapping[int, int]
    parted: Mapping[int, Sequence[Called]]
    path: str
    world: int

    def journal(self, rank: int | None, reports: Sequence[Mapping[str, Any]]) -> Files:
        """That of one rank; None: of no rank that is known."""
        log, path = self.log, self.path
        failures = [one for found in log.failures.values() for one in found]
        times = [s.at_ns for s in log.statements] + [f.at_ns for f in failures]
        times = [at_ns for at_ns in times if at_ns]
        now = max((s.at_ns for s in log.statements), default=0) or max(times, default=0)
        now = now or files.modified_ns(path) or time.time_ns()
        every = [one for groups in self.reported.values() for one in groups.values()]
        longest = max((one.work.waited_ns for one in every if one.work), default=0)
        lacks = {*COUNTS_LACK, *(["moments"] * any(not one.at_ns for one in self.own.values()))}
        lacks |= set() if longest and rank in {*self.reported} - {*log.called} else {"since"}
        stacks = rank in log.stacks or rank in log.called
        lacks -= {"stack", "arguments"} if stacks else set()
        base_ns = min(times, default=now) - longest - 2 * py_spy.UNKNOWN_NS
        records = Records(
            NAME, path, rank, world=self.world, base_ns=base_ns, lacks=lacks, reports=[*reports],
        )  # fmt: skip
        if rank is None:
            return records.done(path, now)
        self._operations(records, rank, now, longest)
        last = now
        failure = self.own.get(rank) or (
            self.echoes.get(rank) if rank not in self.reported else None
        )
        if failure is not None:
            at_ns = failure.at_ns or now
            if failure is self.echoes.get(rank):  # clocks differ; a later job adds no wait
                at_ns = max((one.at_ns for one in self.own.values()), default=0) or min(at_ns, now)
            if rank in self.echoes and failure.type != _INTERRUPT:
                self._broken(records, failure, at_ns)
            _failed(records, failure, at_ns)
        elif (code := self.killed.get(rank)) is not None and rank not in self.reported:
            # The first to fail, so while the others still waited: they gave up after it.
            last = now - longest
            others = max(1, self.world - 1)
            records.define("seen", t=records.t(last), state="gone", code=code, others=others)
        return records.done(f"{path}[rank {rank}]", last)

    def _operations(self, records: Records, rank: int, now: int, longest: int) -> None:
        own = self.reported.get(rank, {})
        whole = self.log.whole is not None and self.log.whole <= self.world
        for number, key in enumerate(sorted({forms.DEFAULT, *own}), 1):
            default = key == forms.DEFAULT
            members = [r for r in sorted(self.reported) if key in self.reported[r]]
            records.group(
                number, key.name, range(self.world) if default else members, desc=key.desc,
                backends={"cuda": "nccl"}, default=default,
                partial=not default or not whole or key in self.uncounted,
            )  # fmt: skip
            if (one := own.get(key)) is not None:
                # A rank that waits for none had enqueued its last before the others began to wait.
                # What is of a later job adds no wait.
                at_ns = one.at_ns if now - one.at_ns <= longest else now
                times = (at_ns, now - (longest or py_spy.UNKNOWN_NS) - 1_000_000_000)
                frames = self.log.stacks.get(rank, ()) if one.work else ()
                counted = key not in self.uncounted
                _operation(records, number, one, *times, counted=counted, frames=frames)
        if (call := self.log.called.get(rank)) is not None:
            self._compared(records, rank, call, now)
        stop = _parted_at(self.parted)
        for call in self.parted.get(rank, ()):
            shapes = [[*(call.shape or ())]]
            number = records.collective(call.op, 1, shapes=shapes, dtypes=[call.dtype])
            records.enqueued(number, now - 60_000_000_000, call.seq, over=call.seq < stop)

    def _compared(self, records: Records, rank: int, call: Called, now: int) -> None:
        """What a check compared, where it raised."""
        of = next(iter(self.log.failures.get(rank, ())), None) or LoggedFailure()
        seqs = {one.seq for one in self.log.called.values()}
        seqs = seqs if len(seqs) == 1 else {0}
        number = records.call(
            op=call.op, shapes=None if call.shape is None else [[*call.shape]],
            dtypes=[call.dtype.lower()] if call.dtype else None, kind="collective", group=1,
            backend="nccl", stack=records.stack(py_spy.program(tuple(of.frames))),
        )  # fmt: skip
        # Of torch before 2.1 numbers were never set.
        begun = records.begin(number, now - 1_000_000_000, q=max(1, min(seqs)))
        if of.type:
            records.after("e", begun, 500_000_000, x=records.string(of.sentence))
            _failed(records, of, now - 500_000_000)
        else:
            records.after("i", begun, 0)

    def _broken(self, records: Records, failure: LoggedFailure, at_ns: int) -> None:
        """The operation in which an exception passes on that others went away."""
        found = py_spy.call_of(py_spy.ProcessSample("", 0, failure.frames))
        op = found.op if found is not None and found.op in py_spy.TOGETHER else UNKNOWN_OP
        stack = records.stack(found.frames if found is not None else failure.frames)
        number = records.call(op=op, kind="collective", group=1, stack=stack)
        begun = records.begin(number, at_ns - 1_000_000_000)
        records.after("e", begun, 1_000_000_000, x=records.string(failure.sentence))


def _failed(records: Records, of: LoggedFailure, at_ns: int) -> None:
    at, stack = records.t(at_ns), records.stack(of.frames)
    records.define("failure", t=at, type=of.type, text=of.text[:1000], stack=stack, h=0)
    records.define("exit", t=at, how="exception", code=1)


def _parted_at(parted: Mapping[int, Sequence[Called]]) -> int:
    """The first number under which ranks called other things, or not all have called."""
    rows = _by_number(parted)
    differ = min((seq for seq, row in rows.items() if len(row) > 1), default=1 << 62)
    return min(differ, min((calls[-1].seq + 1 for calls in parted.values()), default=0))


def _operation(
    records: Records, group: int, one: Statement, at_ns: int, before_ns: int, *, counted: bool,
    frames: Sequence[tuple[str, int, str]],
) -> None:  # fmt: skip
    """What the rank was in; only counts where it did not time out itself."""
    work, enqueued = one.work, one.enqueued
    stuck = work.seq if work is not None else None
    if stuck is None and counted and (one.completed or 0) < (one.at or 0) <= (enqueued or 0):
        stuck = one.at
    if stuck is None and (enqueued is None or not counted):
        return
    waits = stuck is not None or (enqueued or 0) > (one.completed or 0)
    number = stuck if stuck is not None else enqueued
    shapes = [[*work.shape]] if work is not None and work.shape is not None else None
    stack = records.stack(py_spy.program(tuple(frames)))
    op = work.op if work else UNKNOWN_OP
    call = records.collective(op, group, shapes=shapes, stack=stack)
    waited_ns = work.waited_ns if work else 0
    if number:
        begin_ns = at_ns - waited_ns if work else before_ns + 1_000_000_000 * waits
        records.enqueued(call, begin_ns, number if counted else None, over=not waits)
    if counted and stuck is not None and enqueued is not None and enqueued > stuck:
        later = records.collective(UNKNOWN_OP, group)
        records.enqueued(later, at_ns - waited_ns + 1, enqueued, over=False)


UNORDERED = frozenset({"send", "recv", "coalesced", "unknown"})
"""Whose numbers differ by rank, or are counted together with others'."""
Ranks = Mapping[int, Mapping[LoggedGroup, Statement]]


def _reported(lines: Sequence[Statement]) -> tuple[Ranks, frozenset[LoggedGroup]]:
    """Per rank and group what is reported, and the groups in which no ranks are compared by number.

    A line that tells an operation often names no group, and the one after it does. What stays
    without a group is compared with nothing.
    """
    plain = all(one.group in (None, forms.DEFAULT) for one in lines)
    apart = not plain or not _agree([one for one in lines if one.work and one.group is None])
    # What counts in one process only is one group where everybody's rank in it is the global one.
    locals_ = [one for one in lines if one.group is not None and one.group.local]
    if any(one.rank not in (None, one.inner) for one in locals_):
        lines = [replace(one, group=None) if one in locals_ else one for one in lines]
    known = {
        (one.rank, seq): one.group
        for one in lines
        for seq in (one.at, one.work and one.work.seq)
        if seq is not None and one.group is not None
    }
    found: dict[int, dict[LoggedGroup, Statement]] = {}
    for one in lines:
        if one.rank is None:
            continue  # the rank of a subgroup is no global one
        group = one.group
        if group is None and one.work is not None:
            alone = LoggedGroup(f"?{one.work.seq}:{one.work.op}", _UNNAMED)
            group = known.get((one.rank, one.work.seq), alone if apart else forms.DEFAULT)
        if group is not None:
            groups = found.setdefault(one.rank, {})
            groups[group] = _both(groups.get(group, one), one)
    return found, frozenset(_uncounted(found))


_UNNAMED = "a group that the log does not name"
"""Those with an operation's name and number may share it."""


def _agree(bare: Sequence[Statement]) -> bool:
    """Whether lines without a group may all be of one: one number, and of no rank two operations.
    Where these are of group ranks (before torch 2.2), one operation.
    """
    if len({statement.work.seq for statement in bare if statement.work}) > 1:
        return False
    ops = {(statement.rank, statement.work.op) for statement in bare if statement.work}
    named = all(statement.named for statement in bare)
    return len(ops) == len({rank for rank, _ in ops}) and (named or len({op for _, op in ops}) < 2)


def _both(one: Statement, later: Statement) -> Statement:
    """Two lines of a rank about one group as one."""
    counts = later if later.counted else one
    return replace(
        one, work=one.work or later.work, at=later.at or one.at, counted=counts.counted,
        at_ns=max(one.at_ns, later.at_ns), enqueued=counts.enqueued, completed=counts.completed,
    )  # fmt: skip


def _uncounted(found: Ranks) -> Iterable[LoggedGroup]:
    """Groups with messages, which are numbered by themselves, while one counter tells of both."""
    for groups in found.values():
        for key, one in groups.items():
            mixed = (one.completed or 0) > (one.enqueued or 0) and one.enqueued is not None
            if mixed or (one.work is not None and one.work.op in UNORDERED):
                yield key
