"""Which journals of the folder a companion reads: those of its own host, of the try that runs.

Other hosts tell of theirs (``exchange.py``). Where thousands of hosts share the folder, each would
otherwise read the whole job whenever something stands still. What nobody told of is read by one of
them only (``folder_lead.py``).
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable

import orjson

from disttrace.journal.format import definitions_name, is_of_job, is_own, open_own
from disttrace.journal.proc import ROOT
from disttrace_viewer.load.discover import Files, named
from disttrace_viewer.states.merged import Merged, trace_of
from disttrace_viewer.states.state import State

RECENT_S = 60.0
"""So long before the try that runs a file may have been written last and still be of it."""
_FIRST_LINE = 64 << 10
_AGENT = "agent"


class OwnJournals:
    """The journals of ``job`` and ``host``, both as names have them; without a host all of the job.

    Of processes that have ended those are left out that had before this try began: a job of two
    hundred restarts has sixteen hundred of them.
    """

    def __init__(self, directory: str, job: str, host: str = "") -> None:
        self._directory = directory
        self._job = job
        self._host = host
        self._earlier: set[str] = set()
        self._workers: dict[str, float | None] = {}
        """When those that live began (unix seconds); None: a launcher, which outlives tries."""

    def files(self) -> list[Files]:
        """Those that are there now; the folder is listed once."""
        found = {one.base: one for one in of_job(self._directory, self._job)}
        if not self._host:
            return [*found.values()]
        ours = {
            base: files
            for base, files in found.items()
            if base not in self._earlier and _parts(base)[-3] == self._host
        }
        living = {base for base in ours if os.path.exists(f"{ROOT}/{_parts(base)[-2]}")}
        ended = {base: written_s(ours[base]) for base in ours.keys() - living}
        since = self._since(living, ours, ended)
        self._earlier |= {base for base, at_s in ended.items() if at_s < since}
        return [files for base, files in ours.items() if base not in self._earlier]

    def _since(self, living: set[str], ours: dict[str, Files], ended: dict[str, float]) -> float:
        for base in living - self._workers.keys():
            self._workers[base] = _began_s(base)
        began = [at for base in living if (at := self._workers[base]) is not None]
        if not began:
            return max(ended.values(), default=0.0) - RECENT_S
        # The file system's clock may be behind ours: those that live have just written.
        newest = max(written_s(ours[base]) for base in living)
        return min(began) - RECENT_S - max(0.0, time.time() - newest)


def of_job(directory: str, job: str) -> list[Files]:
    """The journals of ``job`` (as names have it): other jobs in the folder are nobody's business
    here."""
    names = (name for name in os.listdir(directory) if is_of_job(name, job))
    return named(os.path.join(directory, name) for name in names)


def untold(directory: str, job: str, own: Merged, told: Iterable[State]) -> list[Files]:
    """The job's journals that are neither ours nor of those who told of theirs, but for such as
    were written last before our own processes began. What others put there is not read."""
    known = {mark_of(state["base"]) for state in (*own.states.values(), *told)}
    trace, _ = trace_of(own)
    starts = [p.start_ns / 1e9 for p in trace.processes if p.role != _AGENT]
    since = min(starts, default=time.time()) - RECENT_S
    return [
        files
        for files in of_job(directory, job)
        if mark_of(files.base) not in known
        and written_s(files) >= since
        and all(is_own(path) for path in files.paths)
    ]


def mark_of(base: str) -> tuple[str, ...]:
    """Host, pid and id of a journal's process, as its name has them whatever the job is called."""
    return tuple(_parts(base)[-3:])


def written_s(files: Files) -> float:
    """When it was written last, by the file system's clock; 0: it is gone."""
    newest = 0.0
    for path in {files.paths[0], files.paths[-1]}:
        try:
            newest = max(newest, os.stat(path, follow_symlinks=False).st_mtime)
        except OSError:
            continue
    return newest


def _began_s(base: str) -> float | None:
    try:
        fd = open_own(definitions_name(base), os.O_RDONLY)
    except OSError:
        return None
    try:
        record = orjson.loads(os.pread(fd, _FIRST_LINE, 0).partition(b"\n")[0])
        return None if record.get("role") == _AGENT else record["start_ns"] / 1e9
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    finally:
        os.close(fd)


def _parts(base: str) -> list[str]:
    return os.path.basename(base).split("-")
