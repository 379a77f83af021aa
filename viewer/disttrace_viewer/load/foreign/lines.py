"""Lines of logs without what launchers put before them: which rank printed a line, and when."""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_STAMP = (
    r"(?P<date>\d{4}[-/]\d\d[-/]\d\d)?[ T_]?(?P<clock>\d\d:\d\d:\d\d)(?:[.,](?P<part>\d{1,9}))?"
)
_PREFIX = re.compile(
    r"\s{0,3}(?:\[rank[: ]{0,2}(?P<rank>\d{1,7})\]:? ?"
    r"|\[default(?P<local>\d{1,7})\]:? ?"
    r"|\[[A-Za-z_]{1,40}(?P<role>\d{1,7})(?:\|(?P<other>\d{1,7}))?\]: ?"
    r"|\((?:[\w.]{1,80} )?(?P<actor>pid=\d{1,10}(?:, ip=[\w.:]{1,40})?)\) ?"
    r"|\[pod/(?P<pod>[\w./-]{1,120})\] ?"
    r"|(?P<host>[A-Za-z][\w.-]{0,80})(?:: | \| | \[std(?:err|out)\] ?)"
    rf"|\[?{_STAMP}(?:Z|[+-]\d\d:?\d\d)?\]? ?(?:[|:-] )?"
    r")"
)
"""What stands before a line, one after another."""
_LABEL = re.compile(r"\s{0,6}(\d{1,7})(?::(?!\d\d[:.]) ?|\t|\| ?)")
"""Of ``srun --label``, or a number of the line (``cat -n``, ``grep -n``)."""
_REPEATED = re.compile(r"\[repeated (\d{1,7})x across cluster\]")
_DIGIT = re.compile("[0-9]")
_WITHIN = re.compile(r"\[rank(\d{1,7})\]:")
_GLOG = re.compile(r"\[[EWIF](\d{1,2})(\d\d) (\d\d):(\d\d):(\d\d)\.(\d+)")
_MOST = 6
_WIDEST = 400
"""Columns of a terminal or a form that wraps lines."""


@dataclass(slots=True)
class Line:
    """A line without its prefixes. ``rank``: the global one, where a prefix tells it; ``local``
    that of a host; ``by``: what else tells who printed it. ``times``: so many printed it.
    """

    text: str
    rank: int | None = None
    local: int | None = None
    by: str = ""
    at_ns: int = 0
    times: int = 1


class Prefixes:
    """Takes off what stands before the lines of one file. ``labels``: whether numbers before its
    lines are ranks (``srun --label``), numbers of lines (False), or text (None).
    """

    def __init__(self, head: Sequence[str], year: int) -> None:
        self._year = year
        found = [_LABEL.match(COLOUR.sub("", text)) for text in head if text.strip()]
        numbers = [int(one[1]) for one in found if one is not None]
        self.labels: bool | None = None
        if numbers and 2 * len(numbers) > len(found):
            rising = all(a < b for a, b in itertools.pairwise(numbers))
            self.labels = not (rising and len(numbers) > 2)

    def strip(self, text: str) -> Line:
        """The line without its prefixes."""
        line = Line(text)
        if "\x1b" in text:
            line.text = COLOUR.sub("", text)
        if (glog := _GLOG.search(line.text)) is not None:
            line.at_ns = _unix(self._year, *map(int, glog.groups()[:5]), part=glog[6])
        if self.labels is not None and (label := _LABEL.match(line.text)) is not None:
            line.text = line.text[label.end() :]
            line.rank = int(label[1]) if self.labels else None
        for _ in range(_MOST):
            found = _PREFIX.match(line.text)
            if found is None or (found["host"] and not _DIGIT.search(found["host"])):
                break
            self._take(line, found)
            line.text = line.text[found.end() :]
        if line.rank is None and (within := _WITHIN.search(line.text)) is not None:
            line.rank = int(within[1])
            line.text = line.text[within.end() :].removeprefix(" ")
        if line.text.endswith(("]", ")")) and (again := _REPEATED.search(line.text)) is not None:
            line.times = int(again[1])
            line.text = line.text[: again.start()].rstrip()
        return line

    def _take(self, line: Line, found: re.Match[str]) -> None:
        if found["rank"]:
            line.rank = int(found["rank"])
        elif found["role"] and found["other"]:  # either order; a global rank is no smaller
            line.rank = max(int(found["role"]), int(found["other"]))
        elif found["local"] or found["role"]:
            # A label before it is of srun's task, which is torchrun's launcher.
            line.local, line.rank = int(found["local"] or found["role"]), None
        elif found["clock"]:
            date = [int(n) for n in re.split("[-/]", found["date"])] if found["date"] else None
            clock = [int(n) for n in found["clock"].split(":")]
            if date is not None and not line.at_ns:
                line.at_ns = _unix(*date, *clock, part=found["part"] or "0")
        else:
            line.by += f"{found['actor'] or found['pod'] or found['host']} "


def _unix(
    year: int, month: int, day: int, hour: int, minute: int, second: int, *, part: str
) -> int:
    try:
        at = time.mktime((year, month, day, hour, minute, second, 0, 0, -1))
    except (OverflowError, ValueError):
        return 0
    return int(at) * 1_000_000_000 + int(part[:9].ljust(9, "0"))


def unix(text: str) -> int:
    """The time (unix ns) of ``2024-11-05_06:21:11``; 0 where it is none."""
    found = re.match(_STAMP, text)
    if found is None or not found["date"]:
        return 0
    date = [int(n) for n in re.split("[-/]", found["date"])]
    return _unix(*date, *map(int, found["clock"].split(":")), part=found["part"] or "0")


_GOES_ON = re.compile(r"[a-z0-9 ,.;:)_\]]")


def width(lines: Sequence[str]) -> int | None:
    """The column at which a form or a terminal has wrapped lines; None where none did: what fills
    it goes on within a word, mostly.
    """
    longest = max(map(len, lines), default=0)
    if not 60 <= longest <= _WIDEST:
        return None
    after = [(a, b) for a, b in itertools.pairwise(lines) if len(a) >= longest - 1]
    going_on = [b for a, b in after if _GOES_ON.match(b) and not _begins(a, b)]
    return longest if len(after) > 1 and 2 * len(going_on) > len(after) else None


def _begins(before: str, line: str) -> bool:
    """Whether a line is not what another one goes on in: it begins as that, or as lines do."""
    alike = before[:4] == line[:4] or _LABEL.match(line) is not None
    return alike or _PREFIX.match(line) is not None or line.startswith(("Traceback", "  File "))


def joined(lines: Iterable[str], width: int) -> Iterator[str]:
    """Lines of which each that fills ``width`` goes on in the next one. A space at its end may be
    lost.
    """
    whole, last = "", ""
    for line in lines:
        if whole and len(last) >= width - 1 and not _begins(whole, line):
            whole += line if len(last) == width else f" {line}"
        else:
            if whole:
                yield whole
            whole = line
        last = line
    if whole:
        yield whole
