"""The verdict on folders of any size: where processes are by states, and what is over by tables.

States need nothing but orjson. What nobody waits in any more (a straggler, work never waited for,
arguments that differed in a call that returned) takes a table of all operations, and Polars.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from disttrace_viewer.api.report import Report, jobs_of, settled, stall_ns
from disttrace_viewer.findings.finding import ERROR, Finding
from disttrace_viewer.load.files import is_remote
from disttrace_viewer.load.said import said
from disttrace_viewer.merge.choice import chooser, folders
from disttrace_viewer.states import folder, job
from disttrace_viewer.states.engines import engine_of

if TYPE_CHECKING:
    from disttrace_viewer.api.reading import Paths

Progress = Callable[[int, int], None]
"""Called with journals done so far, and of how many."""
OF_HISTORY = ("straggler", "late_sender", "unwaited_work")


def diagnose(
    path: Paths = None,
    job: str | None = None,
    *,
    stall_s: float | None = None,
    engine: str | None = None,
    progress: Progress | None = None,
) -> Report:
    """What is wrong in a job (see ``load`` for ``path`` and ``job``). ``stall_s``: while processes
    live, waiting is a fault from so many seconds on (default: DISTTRACE_STALL, else 10).

    ``path`` may also lead to files of states, and to object stores; ``engine`` names a cluster
    that reads. Of these, of jobs that are too large for a table, and where Polars is not installed
    only where processes are is judged, and the report says so.

    Raises:
        ViewerError: when there are no journals, or no such job, or no such engine.
    """
    return settled(lambda: _read(path, job, stall_s, engine, progress))


def _read(
    path: Paths,
    wanted: str | None,
    stall_s: float | None,
    engine: str | None,
    progress: Progress | None,
) -> Report:
    where = folders(path)
    found = job.judged(
        where,
        choose=chooser(wanted),
        stall_ns=stall_ns(stall_s),
        engine=engine_of(engine),
        progress=progress,
    )
    report = Report(found.case, found.findings)
    bases = {os.path.dirname(base) for base in found.bases}
    report.case.said = said(bases, jobs_of(report.case.evidence.trace))
    # Reading these as a whole would move them all.
    apart = engine is not None or any(map(is_remote, where)) or any(map(folder.holds_states, where))
    if apart or importlib.util.find_spec("polars") is None:
        return report
    if not report.healthy and not job.fits_a_table(where):
        return report
    from disttrace_viewer.api.reading import read, report_of

    return _with_history(report, report_of(read(path, wanted), stall_s))


def _with_history(report: Report, whole: Report) -> Report:
    """The report with what only the whole history tells; that by the history where it knows of an
    error in what is over, which may be the cause of all others.
    """
    told = {(found.kind, found.group, found.seq) for found in report.found}
    more = [
        found
        for found in whole.found
        if found.kind in OF_HISTORY
        or (_is_seen(found) and (found.kind, found.group, found.seq) not in told)
    ]
    if report.healthy or any(found.severity == ERROR for found in more):
        return whole
    index = report.case.evidence.trace.by_id
    place = [index[p.id].index for p in whole.case.evidence.trace.processes if p.id in index]
    if len(place) < len(whole.case.evidence.trace.processes):
        return whole  # a process came in between
    report.found = (*report.found, *(_renumbered(found, place) for found in more))
    report.case.history = True
    return report


def _is_seen(found: Finding) -> bool:
    """Whether it may be about what is over as well."""
    return found.kind.endswith("_mismatch") or found.kind == "divergence"


def _renumbered(found: Finding, place: list[int]) -> Finding:
    return replace(
        found,
        culprits=tuple(place[p] for p in found.culprits),
        waiting=tuple(place[p] for p in found.waiting),
        locations=tuple(replace(one, process=place[one.process]) for one in found.locations),
    )
