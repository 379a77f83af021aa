"""A job's journals in one file, and such files in one folder: API that needs no extra.

``disttrace_viewer.api`` needs Polars, which hosts that train do not have.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from disttrace_viewer.load import archives
from disttrace_viewer.load.announcements import paths_of
from disttrace_viewer.load.journals import in_name
from disttrace_viewer.load.problems import ViewerError
from disttrace_viewer.merge.jobs import chooser, folders, nothing
from disttrace_viewer.merge.surveying import restrict, survey
from disttrace_viewer.trace.values import dataclass

__all__ = ["Collected", "Unpacked", "ViewerError", "is_archive", "pack", "unpack"]

Unpacked = archives.Unpacked
is_archive = archives.is_archive


@dataclass(frozen=True, slots=True)
class Collected:
    """What was packed."""

    path: str
    job: str
    journals: int
    files: int


def pack(paths: Sequence[str], *, job: str | None = None, output: str | None = None) -> Collected:
    """Pack the journals of a job below ``paths`` into ``output`` (default: JOB-HOST.tar.gz).

    ``job`` is chosen as everywhere: an id or its beginning, ``newest`` (default) or ``all``.

    Raises:
        ViewerError: when there is no journal, no such job, a wrong name, or a file fails.
    """
    where = folders(paths)
    whole = survey(where)
    if not whole.processes:
        raise nothing(where, whole.problems.found())
    chosen = chooser(job)(whole.jobs)
    host = os.uname().nodename
    target = output or f"{in_name(chosen[-1])}-{in_name(host)}{archives.SUFFIXES[0]}"
    if not target.endswith(archives.SUFFIXES):
        raise ViewerError(f"-o {target}: a file to pack into ends in .tar.gz")
    if not os.path.isdir(os.path.dirname(target) or "."):
        raise ViewerError(f"-o {target}: there is no folder {os.path.dirname(target)}")
    part = restrict(whole, chosen)
    journals = part.journals
    try:
        files = [one.files for one in journals]
        names = {name for one in part.jobs for name in one.names}
        announced = {
            path
            for of in files
            for job in names
            for path in paths_of(os.path.dirname(of.base), job)
        }
        all_of = [path for of in files for path in of.paths]
        count = archives.pack([*all_of, *sorted(announced)], target)
    except OSError as error:
        raise _failed(error, target) from None
    return Collected(target, chosen[-1], len(journals), count)


def unpack(paths: Sequence[str], folder: str) -> Unpacked:
    """Put the journals of all archives into one folder, trusting none of them.

    Raises:
        ViewerError: for what is no archive, is damaged, holds too much, or cannot be written.
    """
    try:
        return archives.unpack(paths, folder)
    except OSError as error:
        raise _failed(error, folder) from None


def _failed(error: OSError, path: str) -> ViewerError:
    return ViewerError(f"{error.filename or path}: {error.strerror or error}")
