"""Jobs of any size: states of processes on disk, and the verdict from them or by way of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from disttrace_viewer.api.report import Report, stall_ns
from disttrace_viewer.load.files import is_remote
from disttrace_viewer.merge.choice import chooser, folders
from disttrace_viewer.states import folder, job
from disttrace_viewer.states.engines import engine_of
from disttrace_viewer.trace.errors import ViewerError

if TYPE_CHECKING:
    from disttrace_viewer.api.reading import Paths

no_cycles = folder.no_cycles

Progress = Callable[[int, int], None]
"""Called with journals done so far, and of how many."""


def write_states(
    path: Paths, output: str, *, engine: str | None = None, progress: Progress | None = None
) -> tuple[int, int]:
    """Reduce all journals of a folder to ``output``: a folder, or a file ``*.states.jsonl.gz``.
    Gives the number of states, and of journals that could not be read.

    Raises:
        ViewerError: where there is no journal, or the engine cannot be reached.
    """
    where = folders(path)
    parts = folder.reduced(where, engine=engine_of(engine), progress=progress)
    count, unread = folder.write(output, parts)
    if not count:
        raise ViewerError(f"no journals in {', '.join(where)}.")
    return count, unread


def diagnose_large(
    path: Paths,
    wanted: str | None = None,
    *,
    stall_s: float | None = None,
    engine: str | None = None,
    progress: Progress | None = None,
) -> Report | None:
    """The verdict by states: on a cluster, of files of states, of object stores, and of jobs that
    are too large to be read as a whole, if something is broken in these. None: a job to be read
    as a whole.

    Raises:
        ViewerError: as ``diagnose``, and where the engine cannot be reached.
    """
    where = folders(path)
    remote = any(map(is_remote, where))  # reading these as a whole would move them all
    asked = engine is not None or remote or all(map(folder.holds_states, where))
    if not asked and not job.is_large(where):
        return None
    found = job.judged(
        where,
        choose=chooser(wanted),
        stall_ns=stall_ns(stall_s),
        engine=engine_of(engine),
        progress=progress,
    )
    return Report.of_states(found) if asked or not found.healthy else None
