"""Jobs as a list: what a folder of journals holds, from definitions only."""

from __future__ import annotations

import os
from dataclasses import dataclass

from disttrace_viewer.merge.jobs import newest
from disttrace_viewer.merge.surveying import Survey


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


def jobs_of(found: Survey) -> tuple[Job, ...]:
    """The jobs, newest first."""
    if not found.jobs:
        return ()
    chosen = newest(found.jobs).id
    rows = []
    for job in found.jobs:
        members = [found.processes[i] for i in job.processes]
        launched = [p for p in members if p.rank is not None] or members
        scripts = (a for p in launched for a in p.argv[1:] if not a.startswith("-"))
        script = next(scripts, None)
        written = max((found.journals[i].modified_ns for i in job.processes), default=0)
        ended = all(p.exit is not None for p in members)
        rows.append(
            Job(
                id=job.id,
                program=None if script is None else os.path.basename(script),
                hosts=tuple(sorted({p.host for p in members})),
                processes=len(members),
                ranks=tuple(sorted({p.rank for p in members if p.rank is not None})),
                world_size=max((p.world_size or 0 for p in members), default=0) or None,
                start_ns=job.start_ns,
                last_ns=job.last_ns if ended else max(job.last_ns, written),
                met=job.linked,
                newest=job.id == chosen,
            )
        )
    return tuple(sorted(rows, key=lambda job: (job.start_ns, job.id), reverse=True))
