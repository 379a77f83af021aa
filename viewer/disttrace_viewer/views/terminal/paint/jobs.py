"""Paints the list of jobs in a folder."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from disttrace_viewer.views.jobs import Job
from disttrace_viewer.views.terminal import DIM
from disttrace_viewer.views.terminal.paint.console import TextConsole
from disttrace_viewer.views.terminal.paint.table import Column, paint_table
from disttrace_viewer.wording.quantities import clock_time, duration, few, number


def paint(jobs: Sequence[Job], out: TextConsole) -> None:
    """One row per job, newest first."""
    columns = [
        Column("job", [job.id for job in jobs], right=False),
        Column("program", [job.program or "?" for job in jobs], right=False),
        Column("started", [clock_time(job.start_ns) for job in jobs], right=False),
        Column("ran", [duration(job.last_ns - job.start_ns) for job in jobs]),
        Column("ranks", [_ranks(job) for job in jobs]),
        Column("processes", [str(job.processes) for job in jobs], dear=1),
        Column("hosts", [few(job.hosts, 2) for job in jobs], right=False, dear=2),
    ]
    paint_table(columns, out)
    met = [job for job in jobs if job.met]
    for job in met:
        out.wrapped(
            Text(f"{job.id} met {few(job.met, 6)} in a store", style=DIM), Text("  "), Text("  ")
        )
    if len(jobs) > 1:
        newest = next(job.id for job in jobs if job.newest)
        out.wrapped(
            Text(f"{number(len(jobs), 'job')}; commands take {newest} unless --job names another"),
            Text(),
            Text(),
        )


def _ranks(job: Job) -> str:
    seen = len(job.ranks)
    whole = job.world_size is None or seen == job.world_size
    return str(seen) if whole else f"{seen} of {job.world_size}"
