"""Which folders and which job are meant, for all who read."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from disttrace_viewer.merge.jobs import closure, newest
from disttrace_viewer.trace import model
from disttrace_viewer.trace.errors import ViewerError

DEFAULT_DIR = "disttrace-out"
DIR_VARIABLE = "DISTTRACE_DIR"
NEWEST, ALL = "newest", "all"


def folders(path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None) -> list[str]:
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
