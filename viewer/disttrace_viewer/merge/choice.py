"""Which folders and which job are meant, for all who read."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from disttrace_viewer.load.problems import ViewerError
from disttrace_viewer.merge.jobs import closure, newest, reached
from disttrace_viewer.trace import model
from disttrace_viewer.trace.plain_text import plain
from disttrace_viewer.trace.process import Problem, Process

DEFAULT_DIR = "disttrace-out"
DIR_VARIABLE = "DISTTRACE_DIR"
NEWEST, ALL = "newest", "all"
Lives = Callable[[Process], bool | None]
"""Whether a process runs, as far as this host can tell."""


def folders(path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None) -> list[str]:
    """The folders that are meant."""
    if path is None or (isinstance(path, Sequence) and not path):
        return [os.environ.get(DIR_VARIABLE) or DEFAULT_DIR]
    if isinstance(path, (str, os.PathLike)):
        return [os.fspath(path)]
    return [os.fspath(one) for one in path]


def nothing(where: Sequence[str], problems: Sequence[Problem]) -> ViewerError:
    """The error for folders without a journal."""
    names = [plain(one) or "''" for one in where]
    if problems and all(problem.kind == "silent" for problem in problems):
        of = [
            (plain(one.path), one.sentence.removeprefix(f"{plain(one.path)}: ")) for one in problems
        ]
        return ViewerError("\n".join(f"{path}: it {why}" for path, why in of))
    if [problem.path for problem in problems] == list(where) and len(where) == 1:
        why = problems[0].sentence.removeprefix(f"{plain(where[0])}: ")
        it = "" if why[:1].isdecimal() else "it "  # what is in a folder is counted
        return ViewerError(f"no journals in {names[0]}: {it}{why}")
    reasons = "".join(f"\n  {problem.sentence}" for problem in problems)
    return ViewerError(
        f"no journals in {', '.join(names)}: run the program with DISTTRACE=1 and give the"
        f" folder that DISTTRACE_DIR names.{reasons}"
    )


def chooser(job: str | None) -> Callable[[Sequence[model.Job]], Sequence[str]]:
    """What picks the ids of the jobs that ``job`` stands for."""
    wanted = job or NEWEST

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


def beside(
    jobs: Sequence[model.Job], processes: Sequence[Process], lives: Lives
) -> list[tuple[str, ...]]:
    """The jobs that are judged besides the newest one and those that it met, newest first, each
    with those that it met in turn: which lived while the newest did, or started it.

    A job that was killed lived to its newest sign of life; one of which a process runs still
    (``lives``) lives, even if nothing was heard of it.
    """
    if not jobs:
        return []
    first = newest(jobs)
    near = closure(jobs, [first.id])
    above = reached(jobs, [one for job in near for one in job.parents], lambda job: job.parents)
    seen = {job.id for job in near}
    found = []
    for job in sorted(jobs, key=lambda job: (job.start_ns, job.index), reverse=True):
        if job.id in seen or not job.known:
            continue
        if job.id in above or _until(job, first, processes, lives):
            met = tuple(one.id for one in closure(jobs, [job.id]))
            # The one itself comes first: it gives all of them their name.
            found.append((job.id, *(one for one in met if one != job.id)))
            seen.update(met)
    return found


def _until(job: model.Job, first: model.Job, processes: Sequence[Process], lives: Lives) -> bool:
    """Whether a job that was launched before another one lived while that one did."""
    if job.last_ns >= first.start_ns:
        return job.start_ns <= first.last_ns
    members = (processes[i] for i in job.processes)
    return any(p.exit is None and lives(p) for p in members)
