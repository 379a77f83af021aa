"""A table that fits the width: columns that are dear are left out first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.text import Text

from disttrace_viewer.views.jobs import Job
from disttrace_viewer.views.terminal import DIM, WAIT
from disttrace_viewer.views.terminal.paint.console import TextConsole
from disttrace_viewer.wording.names import clock_time, duration, few, number


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its cells, and how dear it is where the width does not suffice."""

    title: str
    cells: Sequence[str]
    right: bool = True
    dear: int = 0
    """Dearer columns are left out first; 0 stays."""
    loud: Sequence[bool] = ()
    """Cells that are marked."""

    @property
    def width(self) -> int:
        """Of the longest cell."""
        return max(len(self.title), *(len(cell) for cell in self.cells), 0)


def paint_table(columns: Sequence[Column], out: TextConsole) -> None:
    """The columns for which there is room, in their order; text on the left is cut to fit."""
    kept = list(columns)
    while _width(kept) > out.width and any(c.dear for c in kept):
        kept.remove(max(kept, key=lambda c: c.dear))
    over = max(0, _width(kept) - out.width)
    widths = [c.width for c in kept]
    for place, column in sorted(enumerate(kept), key=lambda p: -p[1].width):
        if not column.right and over:
            cut = min(over, max(0, column.width - max(len(column.title), 10)))
            widths[place] -= cut
            over -= cut
    titles = [f"{c.title:{'>' if c.right else '<'}{w}}" for c, w in zip(kept, widths, strict=True)]
    out.line((f"  {'  '.join(titles)}", DIM))
    for row in range(len(kept[0].cells)):
        text = Text("  ")
        for place, (column, width) in enumerate(zip(kept, widths, strict=True)):
            cell = column.cells[row]
            cell = cell if len(cell) <= width else cell[: width - 1] + "…"
            text.append("  " if place else "")
            loud = bool(column.loud) and column.loud[row]
            text.append(f"{cell:{'>' if column.right else '<'}{width}}", WAIT if loud else "")
        out.line(text)


def _width(columns: Sequence[Column]) -> int:
    return sum(column.width + 2 for column in columns)


def paint_jobs(jobs: Sequence[Job], out: TextConsole) -> None:
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
