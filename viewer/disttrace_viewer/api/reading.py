"""Reading folders of journals: which job is meant, and its trace on one clock."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TypeAlias

from disttrace_viewer.analysis.clock_alignment import align
from disttrace_viewer.merge.jobs import closure, newest
from disttrace_viewer.merge.reader import load as load_model
from disttrace_viewer.merge.survey import survey
from disttrace_viewer.trace import model
from disttrace_viewer.trace.errors import ViewerError
from disttrace_viewer.views.jobs import Job, jobs_of
from disttrace_viewer.views.terminal.paint.console import paper
from disttrace_viewer.views.terminal.paint.jobs import paint

DEFAULT_DIR = "disttrace-out"
DIR_VARIABLE = "DISTTRACE_DIR"
NEWEST, ALL = "newest", "all"

Paths: TypeAlias = "str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None"
"""A folder (read recursively), several, or None for the folder of DISTTRACE_DIR."""

Progress: TypeAlias = "Callable[[int, int], None]"
"""Called with bytes read so far and bytes to read."""


def jobs(path: Paths = None) -> tuple[Job, ...]:
    """The jobs of a folder, newest first; of their journals only the definitions are read.

    Raises:
        ViewerError: when there is no journal.
    """
    where = folders(path)
    found = survey(where)
    if not found.processes:
        raise nothing(where, found.problems.found())
    return jobs_of(found)


def print_jobs(
    found: Sequence[Job], *, width: int | None = None, color: bool | None = None
) -> None:
    """The list on standard output, as ``disttrace jobs`` shows it."""
    paint(found, paper(width=width, color=color))


def read(path: Paths, job: str | None, progress: Progress | None = None) -> model.Trace:
    """The trace of one job of a folder: a job's id or the beginning of it, ``newest`` (with the
    jobs it met; also None) or ``all``.

    Raises:
        ViewerError: when there is no journal, or no such job.
    """
    where = folders(path)
    trace = load_model(where, choose=chooser(job or NEWEST), progress=progress)
    if not trace.processes:
        raise nothing(where, trace.problems)
    return align(trace)


def folders(path: Paths) -> list[str]:
    """The folders that are meant."""
    if path is None or (isinstance(path, Sequence) and not path):
        return [os.environ.get(DIR_VARIABLE) or DEFAULT_DIR]
    if isinstance(path, (str, os.PathLike)):
        return [os.fspath(path)]
    return [os.fspath(one) for one in path]


def nothing(where: Sequence[str], problems: Sequence[model.Problem]) -> ViewerError:
    """The error for folders without a journal."""
    reasons = "".join(f"\n  {problem.sentence}" for problem in problems)
    return ViewerError(
        f"no journals in {', '.join(where)}: run the program with DISTTRACE=1 and give the"
        f" folder that DISTTRACE_DIR names.{reasons}"
    )


def chooser(wanted: str) -> Callable[[Sequence[model.Job]], Sequence[str]]:
    """What picks the ids of the jobs that ``wanted`` stands for."""

    def choose(found: Sequence[model.Job]) -> Sequence[str]:
        if wanted == ALL:
            return [job.id for job in found]
        if wanted == NEWEST:
            return [job.id for job in closure(found, [newest(found).id])]
        exact = [job.id for job in found if job.id == wanted]
        fits = exact or [job.id for job in found if job.id.startswith(wanted)]
        if len(fits) != 1:
            names = ", ".join(job.id for job in found)
            state = "is no job here" if not fits else f"stands for {len(fits)} jobs"
            raise ViewerError(f"--job {wanted} {state}; there are: {names}")
        return fits

    return choose
