"""Which journals a companion reads, whether they are of all ranks, and where the others can be met.

It reads those of its own host, of the try that runs: where thousands of hosts share the folder,
each would otherwise read the whole job whenever something stands still.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress

import orjson

import disttrace.journal.format as fmt
from disttrace.journal.proc import ROOT, entries
from disttrace_viewer.companion.protocol import Address, stores
from disttrace_viewer.load.definitions import rank_in
from disttrace_viewer.load.discover import Files, named
from disttrace_viewer.load.files import modified_ns
from disttrace_viewer.load.tail import segments_of
from disttrace_viewer.states import folder
from disttrace_viewer.states.building import trace_of
from disttrace_viewer.states.reduce import WINDOW
from disttrace_viewer.states.state import Merged, State
from disttrace_viewer.trace.model import JobTrace
from disttrace_viewer.trace.process import AGENT, Process

RECENT_S = 60.0
"""So long before the try that runs a file may have been written last and still be of it."""
_FIRST_LINE = 64 << 10
_MOST_ROLL = 16 << 20


class OwnJournals:
    """The journals of ``job`` and ``host``, both as names have them; without a host all of the job.

    Of processes that have ended those are left out that had before this try began. Where the
    processes of a host said which journals are theirs (``roll``), the folder is not even listed,
    which may hold those of a hundred thousand others.
    """

    def __init__(self, directory: str, job: str, host: str = "", roll: str = "") -> None:
        self._directory = directory
        self._job = job
        self._host = host
        self._members = roll
        self._first: dict[str, int] = {}
        """The oldest segment of each journal of which the first one was dropped."""
        self._earlier: set[str] = set()
        self._workers: dict[str, float | None] = {}
        """When those that live began (unix seconds); None: a launcher, which outlives tries."""

    def files(self) -> list[Files]:
        """Those that are there now; the folder is listed once, or not at all."""
        if not self._host:
            return of_job(self._directory, self._job)
        entries = self._entries() or {
            one.base: os.path.exists(f"{ROOT}/{_parts(one.base)[-2]}")
            for one in _inside(self._directory, self._job)
            if _parts(one.base)[-3] == self._host
        }
        known = (self._of(base) for base in entries if base not in self._earlier)
        ours = {one.base: one for one in known if one.definitions is not None}
        living = {base for base in ours if entries[base]}
        ended = {base: written_s(ours[base]) for base in ours.keys() - living}
        since = self._since(living, ours, ended)
        self._earlier |= {base for base, at_s in ended.items() if at_s < since}
        return [files for base, files in ours.items() if base not in self._earlier]

    def _entries(self) -> dict[str, bool]:
        """Paths of the journals that processes here listed as theirs, and whether these live."""
        try:
            with fmt.opened_own(self._members, os.O_RDONLY) as fd:
                data = os.pread(fd, _MOST_ROLL, 0)
        except OSError:
            return {}
        found = {}
        for one in entries(data):
            path = os.path.join(self._directory, one.base)
            ours = fmt.is_plain_name(one.base) and fmt.is_of_job(one.base, self._job)
            if ours and path not in self._earlier:
                found[path] = one.lives
        return found

    def _of(self, base: str) -> Files:
        """Its files by their names; a long journal's oldest segments are gone."""
        found = Files(base)
        if os.path.lexists(fmt.definitions_name(base)):
            found.definitions = fmt.definitions_name(base)
        number = self._first.get(base, 1)
        if not os.path.lexists(fmt.segment_name(base, number)):
            number = self._first[base] = min(segments_of(base), default=1)
        while os.path.lexists(path := fmt.segment_name(base, number)):
            found.segments[number] = path
            number += 1
        return found

    def _since(self, living: set[str], ours: dict[str, Files], ended: dict[str, float]) -> float:
        for base in living - self._workers.keys():
            self._workers[base] = _began_s(base)
        began = [at for base in living if (at := self._workers[base]) is not None]
        if not began:
            return max(ended.values(), default=0.0) - RECENT_S
        # The file system's clock may be behind ours: those that live have just written.
        newest = max(written_s(ours[base]) for base in living)
        return min(began) - RECENT_S - max(0.0, time.time() - newest)


def of_job(root: str, job: str) -> list[Files]:
    """The journals of ``job`` (as names have it) in the folder of all, and in those of its hosts
    below."""
    found = _inside(root, job)
    for one in _of_hosts(root, job):
        with suppress(OSError):  # it is not for us to read, or was taken away
            found += _inside(one, job)
    return found


def _of_hosts(root: str, job: str) -> list[str]:
    """``ROOT/JOB/HOST`` of all hosts that have one. No link is followed: others may write there."""
    below = os.path.join(root, job)
    if os.path.islink(below) or not fmt.is_plain_name(job):
        return []
    try:
        with os.scandir(below) as found:
            return [one.path for one in found if one.is_dir(follow_symlinks=False)]
    except OSError:
        return []  # none has


def _inside(path: str, job: str) -> list[Files]:
    names = (name for name in os.listdir(path) if fmt.is_of_job(name, job))
    return named(os.path.join(path, name) for name in names)


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
        with fmt.opened_own(fmt.definitions_name(base), os.O_RDONLY) as fd:
            record = orjson.loads(os.pread(fd, _FIRST_LINE, 0).partition(b"\n")[0])
        return None if record.get("role") == AGENT else record["start_ns"] / 1e9
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _parts(base: str) -> list[str]:
    return os.path.basename(base).split("-")


MOST_BESIDE = 256
"""So many of the newest journals in the folder are looked at for processes of the same job."""


def unknown_ranks(trace: JobTrace) -> tuple[int, ...]:
    """Ranks of the job of which no journal is at hand."""
    world = max(_worlds(trace), default=0)
    known = {*_ranks(trace), *trace.elsewhere}
    return tuple(rank for rank in range(world) if rank not in known)


def _ranks(trace: JobTrace) -> list[int]:
    return [p.rank for p in trace.processes if p.rank is not None and not p.is_agent]


def _worlds(trace: JobTrace) -> Iterable[int]:
    for process in trace.processes:
        if process.world_size is not None:
            yield process.world_size
        elif not process.is_agent:
            yield rank_in(process.env.get("WORLD_SIZE")) or 0
    for group in trace.groups:
        if group.default and group.size is not None:
            yield group.size


def is_alone(trace: JobTrace) -> bool:
    """Whether there may be processes of the job of which no journal is at hand."""
    return bool(unknown_ranks(trace)) or not _ranks(trace)


def addresses(merged: Merged, processes: Sequence[Process]) -> list[Address]:
    """TCPStores of ``processes``: see ``stores``."""
    tables = {p.id: merged.states[p.id].numbered for p in processes if p.id in merged.states}
    return stores((tables.get(p.id, {}), p.env, p.is_agent) for p in processes)


def order(trace: JobTrace) -> int:
    """The place of our best speaker: the lowest rank, and before it the agent that started it."""
    agents = any(p.is_agent for p in trace.processes)
    lowest = min(_ranks(trace), default=1 << 30)
    return 2 * lowest + (0 if agents else 1)


def beside(root: str, job: str, local: Merged, known: Collection[State]) -> list[State]:
    """Of processes that use a store of ours and of which no state is ``known``: the states, by
    journals that lie in the folder of all under another job's name than ``job``.

    Bare processes have no launcher that names their job, so each draws a name and has a companion
    of its own. One that is stopped, or holds the GIL, does not answer. What another user put into
    the folder is not read.
    """
    trace, _ = trace_of(local)
    ours = _meet_at(local, trace.processes)
    if not ours:
        return []
    ids = {*local.states, *(state.id for state in known)}
    began = min((p.start_ns for p in trace.processes), default=0)
    marks = {mark_of(state.base) for state in (*local.states.values(), *known)}
    found = named(entry.path for entry in os.scandir(root) if not fmt.is_of_job(entry.name, job))
    newest = sorted(
        (modified_ns(one.definitions), one.base, one) for one in found if one.definitions
    )
    files = [one for at_ns, base, one in newest if at_ns >= began and mark_of(base) not in marks]
    files = [one for one in files[-MOST_BESIDE:] if all(map(fmt.is_own, one.paths))]
    others = folder.of_journals(files, window=WINDOW) if files else Merged({})
    return [
        others.states[process.id]
        for process in trace_of(others)[0].processes
        if process.id not in ids and ours & _meet_at(others, [process])
    ]


def _meet_at(merged: Merged, processes: Sequence[Process]) -> set[Address | str]:
    """Where processes meet others: their TCPStores, and the files of their FileStores."""
    tables = (merged.states[p.id].numbered for p in processes if p.id in merged.states)
    known = (store for table in tables for store in table.get("store", {}).values())
    paths = (store.get("path") for store in known)
    return {*addresses(merged, processes), *(path for path in paths if isinstance(path, str))}
