"""The readers of foreign evidence, in the order in which they are tried, and what they found."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from disttrace_viewer.load import files
from disttrace_viewer.load.discover import Files, Taken
from disttrace_viewer.load.foreign import (
    flight_recorder,
    kineto,
    logs,
    nccl_ras,
    py_spy,
)
from disttrace_viewer.load.problems import Problems


class Reader(Protocol):
    """A module that knows one format; nothing else in the viewer does."""

    def recognises(self, path: str, head: bytes) -> bool:
        """Whether a file may be of this format, by its first bytes and never by its name alone."""
        ...

    def read(self, paths: Sequence[str], problems: Problems) -> Iterator[Files]:
        """The processes that these files tell of, each once, as journals in memory."""
        ...


READERS: tuple[Reader, ...] = (
    kineto,
    nccl_ras,
    flight_recorder,
    py_spy,
    logs,
)
HEAD = 4 << 10
MOST_ASKED = 20_000
"""Files of which the first bytes are looked at: a home folder may have been given."""


Key = tuple[tuple[str, int, int], ...]
_KNOWN: dict[Key, tuple[Taken, Problems]] = {}
"""A command asks several times for the same folder."""


def take(paths: Sequence[str], problems: Problems) -> Taken:
    """The processes that these files tell of."""
    key = tuple((path, files.size(path), files.modified_ns(path)) for path in paths)
    if key not in _KNOWN:
        own = Problems()
        found = _translated(paths, own)
        _KNOWN.clear()
        _KNOWN[key] = found, own
    found, known = _KNOWN[key]
    problems.extend(known)
    return found


def _translated(paths: Sequence[str], problems: Problems) -> Taken:
    of_reader: dict[int, list[str]] = {}
    strangers = list(paths[MOST_ASKED:])
    for path in paths[:MOST_ASKED]:
        number = _reader_of(path)
        if number is None:
            strangers.append(path)
        else:
            of_reader.setdefault(number, []).append(path)
    taken: list[Files] = []
    for number, own in sorted(of_reader.items()):
        new = Problems()
        found = [*READERS[number].read(own, new)]
        if found or not taken:  # a log that tells nothing, beside dumps, is no matter
            problems.extend(new)
        taken += found
    return Taken(tuple(taken), tuple(strangers))


def _reader_of(path: str) -> int | None:
    try:
        head = files.part(path, 0, HEAD)
    except OSError:
        return None
    return next((n for n, one in enumerate(READERS) if one.recognises(path, head)), None)
