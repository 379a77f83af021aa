"""The first pass over journals: definitions only, enough to tell processes, groups and jobs."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from disttrace_viewer.load.discover import Files
from disttrace_viewer.load.foreign.evidence import evidence
from disttrace_viewer.load.journals import Journal, gather
from disttrace_viewer.load.problems import Problems
from disttrace_viewer.merge.groups import named
from disttrace_viewer.merge.jobs import as_called
from disttrace_viewer.merge.processes import Clocks
from disttrace_viewer.merge.surveying import Surveying
from disttrace_viewer.merge.tables import stores_of
from disttrace_viewer.trace.model import Group, Job, Place, Store
from disttrace_viewer.trace.process import Clock, Process


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


def survey(paths: Sequence[str | Files]) -> Survey:
    """Read the definitions of every journal below ``paths``."""
    problems = Problems()
    journals = gather(evidence(paths, problems), problems)
    names = (one if isinstance(one, str) else one.base for one in paths)
    return build(tuple(names), journals, problems)


def restrict(whole: Survey, jobs: Collection[str]) -> Survey:
    """The survey of these jobs only; its processes are numbered anew."""
    kept = [whole.journals[p.index] for p in whole.processes if p.job in jobs]
    part = build(whole.paths, kept, whole.problems)
    names = {p.id: p.job for p in whole.processes}
    part.processes, part.jobs = as_called(names, part.processes, part.jobs)
    return part


def build(paths: tuple[str, ...], journals: list[Journal], problems: Problems) -> Survey:
    """Processes, places, groups and jobs from definitions."""
    clocks = Clocks()
    for journal in journals:
        clocks.add(journal)
    surveying = Surveying(clocks)
    for place, journal in enumerate(journals):
        surveying.journal(place, journal)
    found = surveying.together()
    ids = [journals[process].definitions.group_id(number) or "" for process, number in found.firsts]
    return Survey(
        paths=paths,
        journals=journals,
        processes=found.processes,
        clocks=found.clocks,
        stores=stores_of(journals, {(s.process, s.number): s.place for s in found.bases}),
        places=found.places,
        groups=named(found.groups, found.processes, ids),
        group_index=found.group_index,
        jobs=found.jobs,
        problems=problems,
    )
