"""Numbers as a tired person reads them: durations, offsets, bytes, counts, ranks, tensors."""

from __future__ import annotations

import datetime
import os
from collections.abc import Iterable, Sequence

from disttrace.journal.code_files import in_package

_SECOND = 1_000_000_000
_BYTES = (("GB", 10**9), ("MB", 10**6), ("kB", 10**3))


def duration(ns: int) -> str:
    """``850 ns``, ``12 us``, ``1.23 ms``, ``12.3 s``, ``4 min 05 s`` or ``2 h 03 min``."""
    if ns < 0:
        return "-" + duration(-ns)
    if ns < 1_000:
        return f"{ns} ns"
    for unit, size in (("µs", 10**3), ("ms", 10**6), ("s", 10**9)):
        value = ns / size
        if value < 999.5 and (unit != "s" or value < 100):
            return f"{_three_digits(value)} {unit}"
    seconds = round(ns / _SECOND)
    if seconds < 3600:
        return f"{seconds // 60} min {seconds % 60:02d} s"
    return f"{seconds // 3600} h {seconds // 60 % 60:02d} min"


def roughly(ns: int) -> str:
    """``45 s``, ``28 min``, ``3 h``, ``7 days``: of what is too long for more to count."""
    seconds = ns // _SECOND
    for unit, size in (("days", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"


def _three_digits(value: float) -> str:
    digits = 2 if value < 9.995 else 1 if value < 99.95 else 0
    return f"{value:.{digits}f}"


def offset(ns: int) -> str:
    """Seconds from the start of the job with microseconds: ``+2.872495``."""
    return f"{ns / _SECOND:+.6f}"


def size(count: int) -> str:
    """``16 B``, ``4.10 kB``, ``25.2 MB``."""
    for unit, large in _BYTES:
        if count >= large:
            return f"{_three_digits(count / large)} {unit}"
    return f"{count} B"


def number(count: int, noun: str, many: str | None = None) -> str:
    """``1 worker``, ``4 workers``, ``12,000 operations``."""
    return f"{count:,} {noun if count == 1 else many or noun + 's'}"


def clock_time(ns: int) -> str:
    """Local time of day with its date: ``2026-03-01 14:02:11``."""
    return datetime.datetime.fromtimestamp(ns // _SECOND).isoformat(sep=" ")


def spans(numbers: Iterable[int]) -> str:
    """``0-3, 7`` for 0, 1, 2, 3, 7; ``0, 1`` for two neighbours."""
    return ", ".join(runs(sorted(set(numbers))))


def runs(numbers: Iterable[int]) -> list[str]:
    """Numbers in their order, each run of three or more as one (``0-3``)."""
    return [word for word, _ in _counted_runs(numbers)]


def first_runs(numbers: Sequence[int], most: int) -> tuple[list[str], int]:
    """The first runs of numbers in their order, and how many numbers are in none of them."""
    shown = _counted_runs(numbers)[:most]
    return [word for word, _ in shown], len(numbers) - sum(count for _, count in shown)


def _counted_runs(numbers: Iterable[int]) -> list[tuple[str, int]]:
    found: list[list[int]] = []
    for value in numbers:
        if found and value == found[-1][-1] + 1:
            found[-1].append(value)
        else:
            found.append([value])
    words: list[tuple[str, int]] = []
    for run in found:
        long = len(run) > 2
        words += [(f"{run[0]}-{run[-1]}", len(run))] if long else [(str(n), 1) for n in run]
    return words


def few(items: Sequence[str], limit: int = 8, between: str = ", ") -> str:
    """All items, or the first ones and how many there are more."""
    if len(items) <= limit:
        return between.join(items)
    return f"{between.join(items[:limit])} and {len(items) - limit:,} more"


def tensors(dtypes: Sequence[str] | None, shapes: Sequence[Sequence[int]] | None) -> str:
    """``float32[1024]``, ``float32[4] x 3``, ``3 tensors``; empty where nothing is known."""
    if not shapes:
        return ""
    kinds = list(dtypes or ())
    each = [
        f"{kinds[i] if i < len(kinds) else kinds[0] if kinds else ''}"
        f"[{','.join(str(n) for n in shape)}]"
        for i, shape in enumerate(shapes)
    ]
    if len(set(each)) == 1:
        return each[0] if len(each) == 1 else f"{each[0]} x {len(each)}"
    return f"{len(each)} tensors"


def file_name(path: str) -> str:
    """``train.py``; ``lightning/.../ddp.py`` where it is a package's, for that name alone says
    nothing. What follows the name (``:42``) stays.
    """
    package = in_package(path)
    if package is None:
        return os.path.basename(path)
    first, *between, last = package.split("/") if "/" in package else ("", package)
    return "/".join(filter(None, (first, "..." if between else "", last)))
