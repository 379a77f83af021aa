"""Lines of logs without what launchers put before them: which rank printed a line, and when."""

from __future__ import annotations

import html
import itertools
import re
import time
from collections.abc import Iterable, Sequence
from typing import Any

import orjson

from disttrace_viewer.trace.values import dataclass

COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_STAMP = (
    r"(?:(?P<date>\d{4}[-/]\d\d[-/]\d\d)|\d\d[-/]\d\d(?:[-/]\d{2,4})?)?[ T_]?"
    r"(?P<clock>\d\d:\d\d:\d\d)(?:[.,](?P<part>\d{1,9}))?"
)
_PREFIX = re.compile(
    r"\s{0,24}(?:\[?(?:rank|RANK)[: ]{0,2}(?P<rank>\d{1,7})\]:? ?"
    r"|\[default(?P<local>\d{1,7})\]:? ?"
    r"|\[[A-Za-z_]{1,40}(?P<role>\d{1,7})(?:\|(?P<other>\d{1,7}))?\]: ?"
    r"|\((?:Worker_TP(?P<shard>\d{1,4})(?:_EP\d{1,4})? |[\w.]{1,80} )?"
    r"(?:rank=(?P<worker>\d{1,7}) )?"
    r"(?P<actor>pid=\d{1,10}(?:, ip=[\w.:]{1,40})?)\) ?"
    r"|\[pod/(?P<pod>[\w./-]{1,120})\] ?|>{1,5} ?|\[\d{1,9}\] (?=[\[ T])"
    r"|(?:[A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \d{4})?"
    r"\[(?:(?:[\w.-]{1,80}@)?\d{1,7},)?(?:mpirank:)?(?P<horovod>\d{1,7})(?:,[\w-]{1,40})?\]"
    r"<std(?:err|out)>: ?)"
    r"|\s{0,3}(?:(?:\[[\w.]{1,80}\])?\[?(?:DEBUG|INFO|WARN(?:ING)?|ERROR|CRITICAL|FATAL)(?:\]|\b)"
    r"\s{0,8}(?:[|:-] )?(?:[\w.]{1,80}:[\w.<>]{1,80}:\d{1,7} - )?"
    r"|(?P<host>[A-Za-z][\w.-]{0,80})(?:: | {1,20}\| | \[std(?:err|out)\] ?)"
    r"|(?P<address>\d{1,3}(?:\.\d{1,3}){3}): ?"
    rf"|(?:\| )?[\[(]?{_STAMP}(?:Z|[+-]\d\d:?\d\d)?"
    r"(?: TP(?P<tensor>\d{1,4})(?: EP\d{1,4})?\]| (?P<engine>[DP]P\d{1,4}[^\]]{0,40})\])?"
    r"[\])]? ?(?:[|:-] )?"
    r"|(?P<epoch>1\d{9})(?:\.(?P<after>\d{1,9}))? "
    r"|[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d (?P<logger>[\w.-]{1,80}) [\w./-]{1,80}"
    r"(?:\[\d{1,10}\])?: "
    r"|std(?:err|out) [FP] |(?P<task>[A-Za-z][\w-]{0,80}/\d{1,5}) (?=[\[\d])"
    r"|\[?[\w./-]{1,120}\.py:\d{1,7}\] ?"
    r"|(?P<bar>(?=[^|%\n]{1,63}%\|)[^|]{1,64}\|[^|]{0,200}\| {0,3}[\w./]{1,40}"
    r" (?:\[[^\]]{0,80}\])? ?))"
)
"""What stands before a line, one after another."""
_TWO_WORDS = re.compile("[a-z]{1,20} [a-z]{1,20}[ ,.]")
"""So begins what has no prefix, but for a bar of progress; without this, 20 times as long."""
_LABEL = re.compile(r"\s{0,6}(?:(\d{1,7})(?::(?!\d\d[:.]) ?|\t|\| ?)|\[(\d{1,9})\] )")
"""Of ``srun --label``, of Intel's MPI, or a number of the line (``cat -n``, ``grep -n``)."""
_REPEATED = re.compile(r"\[repeated (\d{1,7})x across cluster\]")
_DIGIT = re.compile("[0-9]")
_WITHIN = re.compile(r"\[rank(?:(?=\d{1,7}\]:)|: |=(?=\d{1,7}\]\[name=))(\d{1,7})\]:?")
_GLOG = re.compile(r"\[[EWIF](\d{1,2})(\d\d) (\d\d):(\d\d):(\d\d)\.(\d+)")
LOST = re.compile(
    r"[^\w.]{0,20}(?:\.{3,9}\W{0,9}$|\.{0,5}\s?\d{0,9} (?:more )?(?:lines?|rows) "
    r"(?:truncated|omitted|skipped|removed|hidden)|(?:truncated|snip(?:ped)?|omitted)\b)"
)
"""What stands for lines that were left out."""
_OF_RANK = ("rank", "worker", "horovod", "tensor", "shard")
_BY = ("actor", "pod", "host", "address", "logger", "task", "engine")
_MOST = 8
_LONGEST = 8 << 10
_WIDEST = 400
"""Columns of a terminal or a form that wraps lines."""


@dataclass(slots=True)
class LogLine:
    """A line without its prefixes. ``rank``: the global one, where a prefix tells it; ``local``
    that of a host; ``by``: what else tells who printed it; ``times``: how many; ``bar``: after one.
    """

    text: str
    rank: int | None = None
    local: int | None = None
    by: str = ""
    at_ns: int = 0
    times: int = 1
    bar: bool = False


_TEXTS = ("log", "message", "msg", "textPayload", "text", "event", "line", "exc_info", "exception",
          "stack_info", "traceback")  # fmt: skip
_TIMES = ("time", "timestamp", "@timestamp", "ts")
_TIME = re.compile(r"\A.*:.*|1\d{9}(?:\.\d{1,9})?")


def plain(text: str) -> list[str]:
    """The lines of a text without the HTML, JSON or colours that it is wrapped in."""
    if "\x1b" in text:
        text = COLOUR.sub("", text)
    if "&gt;" in text or "&quot;" in text or "&#x" in text:
        text = html.unescape(text)
    if " exitcode : " in text:
        text = _FLATTENED.sub("\n", text)
    lines = _entries(text) or text.lstrip("\0").replace("\r", "\n").split("\n")
    if '{"' in lines[0] and any(f'"{key}"' in lines[0] for key in _TEXTS):
        lines = [part for line in lines for part in _unwrapped(line)]
    if len(max(lines, key=len)) > _LONGEST:
        lines = [
            line[n : n + _LONGEST] for line in lines for n in range(0, len(line) or 1, _LONGEST)
        ]
    return lines


_FLATTENED = re.compile(r"(?<=\S) (?=(?:time|host|rank|exitcode|error_file|traceback) {0,6}: )")
"""Between fields of an entry of a summary that stand in one line."""
TRACEBACK = "Traceback (most recent call last)"
_DOCKER = re.compile(r'\{"log":"([^"\\]*)\\n","stream":"\w+","time":"([^"\\]*)"\}')


def _entries(text: str) -> list[str]:
    """The entries of a document that is nothing but entries of a log, each as one line."""
    try:
        found = orjson.loads(text) if text.lstrip()[:1] in ("[", "{") else None
    except orjson.JSONDecodeError:
        return []
    rows = found.get("events") if isinstance(found, dict) else found
    return [orjson.dumps(one).decode() for one in rows] if isinstance(rows, list) else []


def _unwrapped(line: str) -> Sequence[str]:
    if (plain := _DOCKER.fullmatch(line)) is not None and ":" in plain[2]:
        return (f"{plain[2]} {plain[1]}",)
    before, brace, after = line.partition('{"')
    try:
        found = orjson.loads(brace + after) if brace and line.endswith("}") else {}
    except orjson.JSONDecodeError:
        return (line,)
    found |= inner if isinstance(inner := found.get("jsonPayload"), dict) else {}
    found |= _raised(inner) if isinstance(inner := found.get("message"), dict) else {}
    texts = [one for key, one in found.items() if key in _TEXTS and type(one) is str]
    if not texts or "disttrace" in found:
        return (line,)
    rank = before + f"[rank{found.get('rank')}]: " * str(found.get("rank")).isdecimal()
    at = next((f"{found[k]} " for k in _TIMES if k in found and _TIME.fullmatch(str(found[k]))), "")
    text = "\n".join(texts).rstrip("\n")
    return [f"{at}{rank}{one}" for one in text.split("\n")] if "\n" in text else (at + rank + text,)


def _raised(message: dict[str, Any]) -> dict[str, Any]:
    """What torchrun's ``record`` keeps of an exception in an ``error.json``."""
    extra = message.get("extraInfo")
    extra = extra if isinstance(extra, dict) else {}
    text = extra.get("py_callstack") or f"{TRACEBACK}:\n{message.get('message')}"
    return {"message": text, "timestamp": extra.get("timestamp", "")}


def _prefix(text: str) -> re.Match[str] | None:
    """What stands before a line; a word without a digit is no host."""
    if _TWO_WORDS.match(text) is not None and "%|" not in text[:64]:
        return None
    found = _PREFIX.match(text)
    named = found is not None and found["host"] and not _DIGIT.search(found["host"])
    return None if named else found


def _label(text: str) -> re.Match[str] | None:
    """That of a line, which may stand behind what else stands before it."""
    while (label := _LABEL.match(text)) is None and (found := _prefix(text)) is not None:
        text = text[found.end() :]
    return label


class Prefixes:
    """Takes off the prefixes of the lines of one file. ``labels``: whether numbers before its
    lines are ranks (``srun --label``), numbers of lines (False), or text (None).
    """

    def __init__(self, head: Sequence[str], year: int) -> None:
        self._year = year
        found = [_label(text) for text in head if text.strip()]
        numbers = [int(one[1] or one[2]) for one in found if one is not None]
        self.labels: bool | None = None
        indents = (len(text) - len(text.lstrip(" ")) for text in head if text.strip())
        self._margin = " " * min(indents, default=0)
        if numbers and 2 * len(numbers) > len(found):
            rising = all(a < b for a, b in itertools.pairwise(numbers))
            bracketed = any(one is not None and one[2] for one in found)
            rising = (rising and len(numbers) > 2) or (bracketed and max(numbers) > 1024)
            self.labels = not (rising or (bracketed and len(numbers) < 4))

    def strip(self, text: str) -> LogLine:
        """The line without its prefixes."""
        line = LogLine(text.removeprefix(self._margin))
        if (glog := _GLOG.search(line.text)) is not None:
            line.at_ns = _unix(self._year, *map(int, glog.groups()[:5]), part=glog[6])
        labelled = self.labels is None
        for _ in range(_MOST):
            label = None if labelled else _LABEL.match(line.text)
            found = label or _prefix(line.text)
            if found is None:
                break
            if label is None:
                self._take(line, found)
            else:
                labelled = True
                line.rank = int(label[1] or label[2]) if self.labels else line.rank
            line.text = line.text[found.end() :]
        if line.rank is None and (within := _WITHIN.search(line.text)) is not None:
            line.rank = int(within[1])
            line.text = line.text[within.end() :].removeprefix(" ")
        if line.text.endswith(("]", ")")) and (again := _REPEATED.search(line.text)) is not None:
            line.times = int(again[1])
            line.text = line.text[: again.start()].rstrip()
        return line

    def _take(self, line: LogLine, found: re.Match[str]) -> None:
        if found["clock"]:
            line.at_ns = line.at_ns or _stamped(found)
        if rank := next((found[key] for key in _OF_RANK if found[key]), None):
            line.rank = int(rank)
        elif found["role"] and found["other"]:  # either order; a global rank is no smaller
            line.rank = max(int(found["role"]), int(found["other"]))
        elif found["local"] or found["role"]:
            # A label before it is of srun's task, which is torchrun's launcher.
            line.local, line.rank = int(found["local"] or found["role"]), None
        elif found["epoch"]:
            line.at_ns = line.at_ns or int(found["epoch"] + (found["after"] or "").ljust(9, "0"))
        elif found["bar"]:
            line.bar = True
        else:
            by = (found[key] for key in _BY)
            line.by += "".join(f"{one} " for one in by if one)


def _unix(
    year: int, month: int, day: int, hour: int, minute: int, second: int, *, part: str
) -> int:
    try:
        at = time.mktime((year, month, day, hour, minute, second, 0, 0, -1))
    except (OverflowError, ValueError):
        return 0
    return int(at) * 1_000_000_000 + int(part[:9].ljust(9, "0"))


def _stamped(found: re.Match[str]) -> int:
    if not found["date"]:
        return 0
    date = [int(n) for n in re.split("[-/]", found["date"])]
    return _unix(*date, *map(int, found["clock"].split(":")), part=found["part"] or "0")


def unix(text: str) -> int:
    """The time (unix ns) of ``2024-11-05_06:21:11``; 0 where it is none."""
    found = re.match(_STAMP, text)
    return 0 if found is None else _stamped(found)


_GOES_ON = re.compile(r"[a-z0-9 ,.;:)_\]]")


def width(lines: Sequence[str]) -> tuple[int, int] | None:
    """The column at which lines were wrapped, and that at which they go on; or None."""
    longest = max(map(len, lines), default=0)
    if not 60 <= longest <= _WIDEST:
        return None
    texts, start = [text for text in lines if text.strip()], 0
    while found := _prefix(texts[0][start:]):
        if not all(text.startswith(texts[0][: start + found.end()]) for text in texts):
            break
        start += found.end()
    lines = [text[start:] for text in lines]
    after = [(a, b) for a, b in itertools.pairwise(lines) if len(a) >= longest - start - 1]
    going_on = [b for a, b in after if _GOES_ON.match(b) and not _begins(a, b)]
    most = max(1, len(lines) // 50)
    wrapped = len(after) > most and 2 * len(going_on) > len(after)
    return (longest, start) if wrapped else None


def _begins(before: str, line: str) -> bool:
    """Whether a line is not what another one goes on in: it begins as that, or as lines do."""
    if before[:4] == line[:4] or before[-4:] in ("----", "===="):
        return True
    if _TWO_WORDS.match(line) is not None and "%|" not in line:
        return False
    labelled = _LABEL.match(line) or _prefix(line)
    return labelled is not None or line.startswith(("Traceback", "  File "))


def joined(lines: Iterable[str], width: int, start: int) -> list[str]:
    """Lines put together where one fills ``width``; a space at its end may be lost."""
    found: list[str] = []
    last = ""
    for line in lines:
        more = line[start:]
        if len(last) >= width - 1 and found and not _begins(found[-1][start:], more):
            found[-1] += more if len(last) == width else f" {more}"
        else:
            found.append(line)
        last = line
    return found
