"""Jobs as a list: what a folder of journals holds, from definitions only."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from disttrace_viewer.load.files import part, read, size
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


_TAIL = 1 << 14
_TIME = re.compile(rb'"(?:hb|t|at)":(\d{1,18})')


def _last_ns(found: Survey, index: int) -> int:
    """The last sign of a process without an exit record, by the end of its newest segment: when the
    file was written tells when it was copied.
    """
    process, journal = found.processes[index], found.journals[index]
    try:
        path = journal.files.segments[max(journal.files.segments)]
        data = part(path, max(0, size(path) - _TAIL), _TAIL)
        if not data.strip(b"\0"):  # reserved blocks, of which only the front is written
            data = read(path)[0].rstrip(b"\0")[-_TAIL:]
    except (OSError, ValueError):
        return process.last_ns
    newest = max((int(t) for t in _TIME.findall(data)), default=0)
    return process.last_ns + max(0, newest - journal.definitions.last_t)


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
