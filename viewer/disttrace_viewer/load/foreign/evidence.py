"""All evidence below some paths: journals, and what other tools left, as journals."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Protocol

from disttrace_viewer.load import files
from disttrace_viewer.load.discover import Files, name_strangers, search
from disttrace_viewer.load.problems import Problems
from disttrace_viewer.trace.process import Problem

HEAD = 4 << 10
MOST_ASKED = 20_000
"""Files of which the first bytes are looked at: a home folder may have been given."""
Taken = tuple[list[Files], frozenset[str]]
"""Processes as journals in memory, and the files of which the form is known."""
_KNOWN: dict[tuple[tuple[str, int, int], ...], tuple[Taken, Problems]] = {}
"""By path, size and time of the files: a command asks several times for the same folder."""


class Reader(Protocol):
    """A module that knows one format; nothing else in the viewer does."""

    def recognises(self, path: str, head: bytes) -> bool:
        """Whether a file may be of this format, by its first bytes and never by its name alone."""

    def read(self, paths: Sequence[str], problems: Problems) -> Iterator[Files]:
        """The processes that these files tell of, each once, as journals in memory."""


def evidence(paths: Sequence[str | Files], problems: Problems) -> list[Files]:
    """The journals below ``paths``, by name. Raises ViewerError for a remote folder."""
    journals, others, candidates = search(paths, problems)
    taken, recognised = _take(candidates, problems)
    journals |= {one.base: one for one in taken}
    unknown = (path for path in others if path not in recognised)
    name_strangers(unknown, paths, {os.path.dirname(base) for base in journals}, problems)
    return [journals[base] for base in sorted(journals)]


def troubles(paths: Sequence[str | Files]) -> tuple[Problem, ...]:
    """What is wrong with files below ``paths``, where any hold evidence of other tools."""
    problems = Problems()
    foreign_too = files.any_held() and any(
        files.is_held(one.definitions or "") for one in evidence(paths, problems)
    )
    return problems.found() if foreign_too else ()


def _take(paths: Sequence[str], problems: Problems) -> Taken:
    if not paths:
        return [], frozenset()
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
    # Here, for journals need none of them.
    from disttrace_viewer.load.foreign import flight_recorder, kineto, logs, nccl_ras, py_spy

    readers: tuple[Reader, ...] = (kineto, nccl_ras, flight_recorder, py_spy, logs)
    of_reader: dict[Reader, list[str]] = {one: [] for one in readers}
    for path in paths[:MOST_ASKED]:
        with suppress(OSError):
            head = files.part(path, 0, HEAD)
            for reader in readers:
                if reader.recognises(path, head):
                    of_reader[reader].append(path)
                    break
    taken: list[Files] = []
    for reader, own in of_reader.items():
        new = Problems()
        found = [*reader.read(own, new)] if own else []
        if found or not taken:  # a log that tells nothing, beside dumps, is no matter
            problems.extend(new)
        taken += found
    return taken, frozenset(itertools.chain(*of_reader.values()))
