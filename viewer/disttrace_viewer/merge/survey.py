"""The first pass over journals: definitions only, enough to tell processes, groups and jobs."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from disttrace_viewer.load.foreign.evidence import evidence
from disttrace_viewer.load.journals import Journal, gather
from disttrace_viewer.load.problems import Problems
from disttrace_viewer.merge import groups as grouping
from disttrace_viewer.merge import jobs as launching
from disttrace_viewer.merge import processes as processing
from disttrace_viewer.merge.clock import to_unix
from disttrace_viewer.merge.store_servers import Life, places_of, until_restarts
from disttrace_viewer.merge.tables import seen_groups, stores_of
from disttrace_viewer.trace.model import Clock, Group, Job, Place, Process, Store

UNINSTALLED = "uninstalled"
"""The word of an exit record after which the process may go on."""


@dataclass(slots=True)
class Survey:
    """What lies in the folders, before any operation is read."""

    paths: tuple[str, ...]
    journals: list[Journal]
    processes: tuple[Process, ...]
    clocks: tuple[Clock, ...]
    stores: tuple[Store, ...]
    places: tuple[Place, ...]
    groups: tuple[Group, ...]
    group_index: dict[tuple[int, int], int]
    """Index of a group by (process, the process's own number of it)."""
    jobs: tuple[Job, ...]
    problems: Problems


def survey(paths: Sequence[str]) -> Survey:
    """Read the definitions of every journal below ``paths``."""
    problems = Problems()
    journals = gather(evidence(paths, problems), problems)
    return build(tuple(paths), journals, problems)


def restrict(whole: Survey, jobs: Collection[str]) -> Survey:
    """The survey of these jobs only; its processes are numbered anew."""
    kept = [whole.journals[p.index] for p in whole.processes if p.job in jobs]
    return build(whole.paths, kept, whole.problems)


def build(paths: tuple[str, ...], journals: list[Journal], problems: Problems) -> Survey:
    """Processes, places, groups and jobs from definitions."""
    processes, clocks = processing.processes_of(journals)
    sources = [j.definitions.process.get("job_source") or "" for j in journals]
    lives = until_restarts(
        processes,
        [life_of(p, j, clocks[p.clock]) for p, j in zip(processes, journals, strict=True)],
    )
    lives = launching.by_launch(processes, lives, sources)
    places, place_ids = places_of(processes, stores_of(journals, only_bases=True), lives)
    stores = stores_of(journals, place_ids)
    circles = launching.circles(processes, places)
    seen = seen_groups(journals, processes, clocks, stores)
    groups, group_index, firsts = grouping.merge(place_ids, seen, circles, lives)
    groups, _ = grouping.without_copies(groups, processes)
    ids = [journals[process].definitions.group_id(number) or "" for process, number in firsts]
    groups = grouping.named(groups, processes, ids)
    orphans = frozenset(index for index, journal in enumerate(journals) if journal.orphaned)
    modified = [journal.modified_ns for journal in journals]
    jobs = launching.jobs_of(processes, places, groups, lives, sources, orphans, modified)
    return Survey(
        paths=paths,
        journals=journals,
        processes=launching.with_jobs(processes, jobs),
        clocks=clocks,
        stores=stores,
        places=places,
        groups=groups,
        group_index=group_index,
        jobs=jobs,
        problems=problems,
    )


def life_of(process: Process, journal: Journal, clock: Clock) -> Life:
    """When a process lived, or may have; by the steady clock of its boot, which nobody sets."""
    start_ns = to_unix(clock, process.t0) if process.t0 else process.start_ns
    if process.exit is not None:
        ended = process.exit.how != UNINSTALLED
        return Life(start_ns, process.exit.t_ns, process.boot_id, ended)
    return Life(start_ns, max(process.last_ns, journal.modified_ns), process.boot_id)
