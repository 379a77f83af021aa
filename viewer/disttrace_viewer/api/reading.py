"""Reading folders of journals: which jobs are there, and a job's trace on one clock."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from typing import TypeAlias

from disttrace_viewer.load import files
from disttrace_viewer.merge.jobs import chooser, folders, newest, nothing
from disttrace_viewer.merge.surveying import Survey, survey
from disttrace_viewer.states.folder import engine_of
from disttrace_viewer.trace import model
from disttrace_viewer.trace.values import dataclass
from disttrace_viewer.wording.names import clock_time, duration, few, number

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
    chosen = newest(found.jobs).id
    rows = []
    for job in found.jobs:
        members = [found.processes[i] for i in job.processes]
        launched = [p for p in members if p.rank is not None] or members
        script = next((a for p in launched for a in p.argv[1:] if not a.startswith("-")), None)
        signs = [_last_ns(found, i) for i in job.processes if found.processes[i].exit is None]
        rows.append(
            Job(
                id=job.id,
                program=None if script is None else os.path.basename(script),
                hosts=tuple(sorted({p.host for p in members})),
                processes=len(members),
                ranks=tuple(sorted({p.rank for p in members if p.rank is not None})),
                world_size=max((p.world_size or 0 for p in members), default=0) or None,
                start_ns=job.start_ns,
                last_ns=max([job.last_ns, *signs]),
                met=job.linked,
                newest=job.id == chosen,
            )
        )
    return tuple(sorted(rows, key=lambda job: (job.start_ns, job.id), reverse=True))


def print_jobs(
    found: Sequence[Job], *, width: int | None = None, color: bool | None = None
) -> None:
    """The list on standard output, as ``disttrace jobs`` shows it."""
    from rich.text import Text

    from disttrace_viewer.views.terminal import DIM
    from disttrace_viewer.views.terminal.console import Column, TextConsole, paint_table

    out = TextConsole(width=width, color=color)
    ranks = [
        f"{len(job.ranks)} of {job.world_size}"
        if job.world_size not in (None, len(job.ranks))
        else str(len(job.ranks))
        for job in found
    ]
    columns = [
        Column("job", [job.id for job in found], right=False),
        Column("program", [job.program or "?" for job in found], right=False),
        Column("started", [clock_time(job.start_ns) for job in found], right=False),
        Column("ran", [duration(job.last_ns - job.start_ns) for job in found]),
        Column("ranks", ranks),
        Column("processes", [str(job.processes) for job in found], dear=1),
        Column("hosts", [few(job.hosts, 2) for job in found], right=False, dear=2),
    ]
    paint_table(columns, out)
    met = [job for job in found if job.met]
    for job in met:
        out.wrapped(Text(f"{job.id} met {few(job.met, 6)} in a store", DIM), "  ", "  ")
    if len(found) > 1:
        newest = next(job.id for job in found if job.newest)
        jobs = number(len(found), "job")
        out.wrapped(f"{jobs}; commands take {newest} unless --job names another")


def read(
    path: Paths, job: str | None, progress: Progress | None = None, engine: str | None = None
) -> model.JobTrace:
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


@dataclass(frozen=True, slots=True)
class Job:
    """One launch: what a command started, over all hosts and restarts. Times are unix ns."""

    id: str
    program: str | None
    """The script that its oldest worker ran; None where that is not known."""
    hosts: tuple[str, ...]
    processes: int
    ranks: tuple[int, ...]
    world_size: int | None
    start_ns: int
    last_ns: int
    """Newest sign of life of any of its processes."""
    met: tuple[str, ...]
    """Ids of other jobs whose processes met processes of this one in a store."""
    newest: bool
    """Whether commands take it where no job is named."""


_TAIL = 1 << 14
_TIME = re.compile(rb'"(?:hb|t|at)":(\d{1,18})')


def _last_ns(found: Survey, index: int) -> int:
    """The last sign of a process without an exit record, by the end of its newest segment: when the
    file was written tells when it was copied.
    """
    process, journal = found.processes[index], found.journals[index]
    try:
        path = journal.files.segments[max(journal.files.segments)]
        data = files.part(path, max(0, files.size(path) - _TAIL), _TAIL)
        if not data.strip(b"\0"):  # reserved blocks, of which only the front is written
            data = files.read(path)[0].rstrip(b"\0")[-_TAIL:]
    except (OSError, ValueError):
        return process.last_ns
    newest = max((int(t) for t in _TIME.findall(data)), default=0)
    return process.last_ns + max(0, newest - journal.definitions.last_t)
