"""What definitions hold of processes, and all together: groups, places, launches and jobs."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from disttrace.journal.format import SEEN_GONE, UNINSTALLED
from disttrace_viewer.load.discover import Files
from disttrace_viewer.load.foreign.evidence import evidence
from disttrace_viewer.load.journals import Journal, gather
from disttrace_viewer.load.problems import Problems
from disttrace_viewer.merge import jobs as launching
from disttrace_viewer.merge import processes as processing
from disttrace_viewer.merge import tables
from disttrace_viewer.merge.clock import aligned, moved_definitions, to_unix
from disttrace_viewer.merge.store_servers import Life, places_of, until_restarts
from disttrace_viewer.trace.model import Group, JobTrace, LaunchedJob, Place, Store
from disttrace_viewer.trace.process import Clock, Process
from disttrace_viewer.trace.values import dataclass, replace


@dataclass(slots=True)
class Survey:
    """What lies in journals or states, before any operation is looked at."""

    processes: tuple[Process, ...]
    clocks: tuple[Clock, ...]
    stores: tuple[Store, ...]
    places: tuple[Place, ...]
    groups: tuple[Group, ...]
    group_index: dict[tuple[int, int], int]
    """Index of a group by (process, the process's own number of it)."""
    copies: tables.Copies
    jobs: tuple[LaunchedJob, ...]
    paths: tuple[str, ...]
    problems: Problems
    journals: Sequence[Journal]
    """By process."""

    @property
    def store_index(self) -> dict[tuple[int, int], int]:
        """Index of a store by (process, the process's own number of it)."""
        return {(store.process, store.number): store.index for store in self.stores}


Meetings = list[list[Any]]
"""Of a process the exchanges that bound its clock."""


def surveyed(
    paths: tuple[str, ...],
    journals: Sequence[Journal],
    problems: Problems,
    called: Mapping[str, str] | None = None,
    met: Sequence[Meetings] = (),
) -> Survey:
    """Processes, places, groups and jobs from definitions; ``called`` as of ``jobs_of``; ``met`` by
    journal, where no table will have it."""
    clock_places, clocks = processing.clocks_of(journals)
    processes: list[Process] = []
    lives: list[Life] = []
    stores: list[Store] = []
    definitions: list[tables.Seen] = []
    modified: list[int] = []
    orphans: list[int] = []
    bounds: list[tuple[int, int, Meetings]] = []
    for place, journal in enumerate(journals):
        process = processing.process_of(place, journal, clock_places, clocks)
        processes.append(process)
        clock = clocks[process.clock]
        lives.append(life_of(process, journal, clock))
        modified.append(journal.modified_ns)
        if journal.orphaned:
            orphans.append(place)
        if met and met[place]:
            bounds.append((place, to_unix(clock, process.t0), met[place]))
        own = tables.stores_of(place, journal.definitions.numbered["store"], len(stores))
        stores += own.values()
        definitions += _groups(journal, process, clock, own)
    processing.tell(processes)
    lives = launching.by_launch(processes, until_restarts(processes, lives))
    places, place_ids = places_of(processes, stores, lives)
    place_ids = {index: sys.intern(identity) for index, identity in place_ids.items()}
    circles = launching.circles(processes, places)
    groups, group_index, firsts = tables.merge_groups(place_ids, definitions, circles, lives)
    groups, copies = tables.without_copies(groups, processes)
    ids = [journals[place].definitions.group_id(number) or "" for place, number in firsts]
    groups = tables.named(groups, processes, ids)
    jobs = launching.jobs_of(
        processes, places, groups, lives, frozenset(orphans), modified, called or {}
    )
    moved = aligned(clocks, processes, group_index, groups, bounds)
    name = {i: job.id for job in jobs for i in job.processes}
    known = tuple(p if p.job == name[p.index] else replace(p, job=name[p.index]) for p in processes)
    if moved != clocks:
        known, groups = moved_definitions(known, groups, clocks, moved)
    return Survey(
        processes=known,
        clocks=moved,
        stores=tuple(replace(s, place=place_ids.get(s.base or 0, "")) for s in stores),
        places=places,
        groups=groups,
        group_index=group_index,
        copies=copies,
        jobs=jobs,
        paths=paths,
        problems=problems,
        journals=journals,
    )


def _groups(
    journal: Journal, process: Process, clock: Clock, stores: Mapping[int, Store]
) -> Iterator[tables.Seen]:
    for number, record in journal.definitions.numbered["group"].items():
        own = stores.get(record.get("store", -1))
        t = record.get("t")
        base, prefix = (None, ()) if own is None else (own.base, own.prefix)
        t_ns = None if t is None else to_unix(clock, process.t0 + t)
        yield tables.Seen(process.index, number, record, base, prefix, t_ns)


def life_of(process: Process, journal: Journal, clock: Clock) -> Life:
    """When a process lived, or may have; by the steady clock of its boot, which is never set."""
    start_ns = to_unix(clock, process.t0) if process.t0 else process.start_ns
    sign_ns = max(process.last_ns, journal.modified_ns)
    end_ns, ended = sign_ns, False
    if process.exit is not None:
        end_ns, ended = process.exit.t_ns, process.exit.how != UNINSTALLED
    else:
        for seen_at in (one.t_ns for one in process.sightings if one.state == SEEN_GONE):
            end_ns, ended = seen_at, True
    rank = None if process.is_agent else process.rank
    sign_ns = min(sign_ns, end_ns)
    return Life(start_ns, end_ns, process.boot_id, ended, rank=rank, sign_ns=sign_ns)


def survey(paths: Sequence[str | Files]) -> Survey:
    """Read the definitions of every journal below ``paths``."""
    problems = Problems()
    journals = gather(evidence(paths, problems), problems)
    names = (one if isinstance(one, str) else one.base for one in paths)
    return surveyed(tuple(names), journals, problems)


def trace_of(part: Survey, whole: Survey, processes: Sequence[Process], **found: Any) -> JobTrace:
    """The trace of a part of what was surveyed: its ``processes`` as they are known now, and what
    else was ``found`` of it."""
    here = {job.id for job in part.jobs}
    return JobTrace(
        processes=tuple(processes),
        stores=part.stores,
        places=part.places,
        jobs=tuple(
            replace(job, last_ns=max(processes[i].last_ns for i in job.processes))
            for job in part.jobs
        ),
        other_jobs=tuple(replace(job, processes=()) for job in whole.jobs if job.id not in here),
        of_others=frozenset(p.id for p in whole.processes if p.job not in here),
        clocks=part.clocks,
        **found,
    )


def restrict(whole: Survey, jobs: Collection[str]) -> Survey:
    """The survey of these jobs only; its processes are numbered anew."""
    kept = [whole.journals[p.index] for p in whole.processes if p.job in jobs]
    return surveyed(whole.paths, kept, whole.problems, {p.id: p.job for p in whole.processes})
