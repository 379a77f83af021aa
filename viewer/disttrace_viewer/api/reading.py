"""Reading folders of journals: a job's trace on one clock."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TypeAlias

from disttrace_viewer.api.report import Report, report_of, stall_ns
from disttrace_viewer.load.foreign.evidence import evidence
from disttrace_viewer.load.problems import Problems
from disttrace_viewer.merge.choice import chooser, folders, nothing
from disttrace_viewer.merge.surveying import survey
from disttrace_viewer.states.folder import engine_of
from disttrace_viewer.trace import model
from disttrace_viewer.views.jobs import Job, jobs_of
from disttrace_viewer.views.terminal.paint.console import paper
from disttrace_viewer.views.terminal.paint.table import paint_jobs

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


def journals(path: Paths = None) -> tuple[tuple[str, ...], ...]:
    """The files of each journal: ``load(files)`` makes its operations a frame, and looks at nothing
    else, so that an engine of one's own can do that anywhere (``docs/tables.md``).

    Raises:
        ViewerError: when there is no journal.
    """
    where, problems = folders(path), Problems()
    found = evidence(where, problems)
    if not found:
        raise nothing(where, problems.found())
    return tuple(one.paths for one in found)


def print_jobs(
    found: Sequence[Job], *, width: int | None = None, color: bool | None = None
) -> None:
    """The list on standard output, as ``disttrace jobs`` shows it."""
    paint_jobs(found, paper(width=width, color=color))


def read(
    path: Paths, job: str | None, progress: Progress | None = None, engine: str | None = None
) -> model.Trace:
    """The trace of one job of a folder: a job's id or the beginning of it, ``newest`` (with the
    jobs it met; also None) or ``all``. ``engine`` names a cluster that reads the segments.

    Raises:
        ViewerError: when there is no journal, or no such job, or no such engine.
    """
    # Of all that is here only this needs Polars, which takes as long as a list of jobs.
    from disttrace_viewer.analysis.exchanges import align
    from disttrace_viewer.merge.reader import load as load_model

    where = folders(path)
    by = None if engine is None else engine_of(engine)
    trace = load_model(where, choose=chooser(job), progress=progress, engine=by)
    if not trace.processes:
        raise nothing(where, trace.problems)
    return align(trace)


def report_on(trace: model.Trace, stall_s: float | None = None) -> Report:
    """The report on a trace, with what its job said itself."""
    from disttrace_viewer.history.past import verdict_on

    return report_of(verdict_on(trace, stall_ns=stall_ns(stall_s)))
