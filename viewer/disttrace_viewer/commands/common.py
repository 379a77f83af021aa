"""What every command of the reading side shares: folders, the choice of jobs, a progress bar."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from disttrace_viewer.analysis.clock_alignment import align
from disttrace_viewer.merge.jobs import closure, newest
from disttrace_viewer.merge.reader import load
from disttrace_viewer.trace.errors import ViewerError
from disttrace_viewer.trace.model import Job, Trace

DEFAULT_DIR = "disttrace-out"
DIR_VARIABLE = "DISTTRACE_DIR"
PATIENCE_S = 1.0
"""Reading that is done by then shows no progress bar."""


def add_arguments(parser: argparse.ArgumentParser, *, whole_folders: bool = False) -> None:
    """The options of reading. Without ``--job`` the newest job is read, with the jobs it met;
    with ``whole_folders`` all jobs of folders that are named.
    """
    parser.add_argument(
        "dirs",
        nargs="*",
        metavar="DIR",
        help=f"folders of journals, read recursively (default: {DIR_VARIABLE}, else {DEFAULT_DIR})",
    )
    parser.add_argument(
        "--job",
        metavar="ID",
        help="a job's id or the beginning of it, 'newest' (with the jobs it met), or 'all'"
        + (" (default: all of a DIR that is named)" if whole_folders else " (default: newest)"),
    )
    parser.set_defaults(whole_folders=whole_folders)


def read(args: argparse.Namespace, *, quiet: bool = False) -> Trace:
    """The trace that the options ask for; ``quiet`` shows no progress.

    Raises ``ViewerError`` with exit code 2 when there is nothing to read in it.
    """
    job = args.job or ("all" if args.whole_folders and args.dirs else "newest")
    dirs = list(args.dirs) or [os.environ.get(DIR_VARIABLE) or DEFAULT_DIR]
    with _progress(quiet) as progress:
        trace = load(dirs, choose=_chooser(job), progress=progress)
    if not trace.processes:
        reasons = "".join(f"\n  {problem.sentence}" for problem in trace.problems)
        raise ViewerError(
            f"no journals in {', '.join(dirs)}: run the program with DISTTRACE=1 and give the"
            f" folder that DISTTRACE_DIR names.{reasons}"
        )
    return align(trace)


def _chooser(wanted: str) -> Callable[[Sequence[Job]], Sequence[str]]:
    def choose(jobs: Sequence[Job]) -> Sequence[str]:
        if wanted == "all":
            return [job.id for job in jobs]
        if wanted == "newest":
            return [job.id for job in closure(jobs, [newest(jobs).id])]
        exact = [job.id for job in jobs if job.id == wanted]
        found = exact or [job.id for job in jobs if job.id.startswith(wanted)]
        if len(found) != 1:
            names = ", ".join(job.id for job in jobs)
            state = "is no job here" if not found else f"stands for {len(found)} jobs"
            raise ViewerError(f"--job {wanted} {state}; there are: {names}")
        return found

    return choose


@contextmanager
def _progress(quiet: bool) -> Iterator[Callable[[int, int], None] | None]:
    """A bar on standard error, on a terminal only, and only when reading takes long."""
    if quiet or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

    bar = Progress(
        TextColumn("reading journals"),
        BarColumn(),
        DownloadColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    started = time.monotonic()
    task = bar.add_task("read", total=None)

    def report(done: int, total: int) -> None:
        if bar.live.is_started:
            bar.update(task, completed=done, total=total)
        elif time.monotonic() - started > PATIENCE_S:
            bar.start()

    try:
        yield report
    finally:
        bar.stop()
