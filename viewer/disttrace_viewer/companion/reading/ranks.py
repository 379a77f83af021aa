"""Whether the journals at hand are of all ranks of the job, and where the others can be met."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Sequence

from disttrace.journal.format import is_of_job, is_own
from disttrace_viewer.companion.hub.address import Address, stores
from disttrace_viewer.companion.reading.journals import mark_of, marks_of
from disttrace_viewer.load.definitions import number_in
from disttrace_viewer.load.discover import named
from disttrace_viewer.load.files import modified_ns
from disttrace_viewer.states import folder
from disttrace_viewer.states.building import trace_of
from disttrace_viewer.states.merged import Merged
from disttrace_viewer.states.reduce import WINDOW
from disttrace_viewer.states.state import State
from disttrace_viewer.trace.model import Trace
from disttrace_viewer.trace.process import Process

MOST_BESIDE = 256
"""So many of the newest journals in the folder are looked at for processes of the same job."""


def unknown_ranks(trace: Trace) -> tuple[int, ...]:
    """Ranks of the job of which no journal is at hand."""
    world = max(_worlds(trace), default=0)
    known = {*_ranks(trace), *trace.elsewhere}
    return tuple(rank for rank in range(world) if rank not in known)


def _ranks(trace: Trace) -> list[int]:
    return [p.rank for p in trace.processes if p.rank is not None and not p.is_agent]


def _worlds(trace: Trace) -> Iterable[int]:
    for process in trace.processes:
        if process.world_size is not None:
            yield process.world_size
        elif not process.is_agent:
            yield number_in(process.env.get("WORLD_SIZE"), "size") or 0
    for group in trace.groups:
        if group.default and group.size is not None:
            yield group.size


def is_alone(trace: Trace) -> bool:
    """Whether there may be processes of the job of which no journal is at hand."""
    return bool(unknown_ranks(trace)) or not _ranks(trace)


def addresses(merged: Merged, processes: Sequence[Process]) -> list[Address]:
    """TCPStores of ``processes``: see ``stores``."""
    tables = {p.id: merged.states[p.id].numbered for p in processes if p.id in merged.states}
    return stores((tables.get(p.id, {}), p.env, p.is_agent) for p in processes)


def order(trace: Trace) -> int:
    """The place of our best speaker: the lowest rank, and before it the agent that started it."""
    agents = any(p.is_agent for p in trace.processes)
    lowest = min(_ranks(trace), default=1 << 30)
    return 2 * lowest + (0 if agents else 1)


def beside(root: str, job: str, local: Merged, known: Collection[State]) -> list[State]:
    """Of processes that use a store of ours and of which no state is ``known``: the states, by
    journals that lie in the folder of all under another job's name than ``job``.

    Bare processes have no launcher that names their job, so each draws a name and has a companion
    of its own, and no folder of its own for journals. One that is stopped, or holds the GIL, or
    whose store's server is, answers nobody. What another user put into the folder is not read.
    """
    trace, _ = trace_of(local)
    ours = _meet_at(local, trace.processes)
    if not ours:
        return []
    ids = {*local.states, *(state.id for state in known)}
    began = min((p.start_ns for p in trace.processes), default=0)
    marks = {*marks_of(local.states.values()), *marks_of(known)}
    found = named(entry.path for entry in os.scandir(root) if not is_of_job(entry.name, job))
    newest = sorted(
        (modified_ns(one.definitions), one.base, one) for one in found if one.definitions
    )
    files = [one for at_ns, base, one in newest if at_ns >= began and mark_of(base) not in marks]
    files = [one for one in files[-MOST_BESIDE:] if all(map(is_own, one.paths))]
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
