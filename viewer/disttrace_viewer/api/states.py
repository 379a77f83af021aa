"""States of processes on disk."""

from __future__ import annotations

from typing import TYPE_CHECKING

from disttrace_viewer.merge.choice import folders
from disttrace_viewer.states import folder
from disttrace_viewer.states.engines import engine_of
from disttrace_viewer.trace.errors import ViewerError

if TYPE_CHECKING:
    from disttrace_viewer.api.reading import Paths

no_cycles = folder.no_cycles


def write_states(
    path: Paths, output: str, *, engine: str | None = None, progress: folder.Progress | None = None
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
