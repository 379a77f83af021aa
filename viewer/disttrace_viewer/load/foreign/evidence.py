"""All evidence below some paths: journals, and what other tools left, as journals."""

from __future__ import annotations

from collections.abc import Sequence

from disttrace_viewer.load.discover import Files, Taken, search, settle
from disttrace_viewer.load.files import is_held
from disttrace_viewer.load.problems import Problems
from disttrace_viewer.trace.process import Problem


def evidence(paths: Sequence[str | Files], problems: Problems) -> list[Files]:
    """The journals below ``paths`` (folders or single files), sorted by name.

    Raises ViewerError where a remote folder cannot be listed.
    """
    found = search(paths, problems)
    return settle(found, _take(found.candidates, problems), problems)


def _take(paths: Sequence[str], problems: Problems) -> Taken:
    if not paths:
        return Taken()
    from disttrace_viewer.load.foreign.table import take  # a dozen readers, which journals need not

    return take(paths, problems)


def troubles(paths: Sequence[str | Files]) -> tuple[Problem, ...]:
    """What is wrong with files below ``paths``, where any hold evidence of other tools."""
    problems = Problems()
    foreign_too = any(is_held(one.definitions or "") for one in evidence(paths, problems))
    return problems.found() if foreign_too else ()
