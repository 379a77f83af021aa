"""What definitions hold of processes, and all together: groups, places, launches and jobs."""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from disttrace.journal.format import SEEN_GONE, UNINSTALLED
from disttrace_viewer.load.discover import Files
from disttrace_viewer.load.foreign.evidence import evidence
from disttrace_viewer.load.journals import Journal, gather
from disttrace_viewer.load.problems import Problems
from disttrace_viewer.merge import jobs as launching
from disttrace_viewer.merge import processes as processing
from disttrace_viewer.merge.clock import Met, aligned, moved_definitions, to_unix
from disttrace_viewer.merge.jobs import as_called
from disttrace_viewer.merge.processes import Clocks
from disttrace_viewer.merge.store_servers import Life, places_of, until_restarts
from disttrace_viewer.merge.tables import (
    Copies,
    Seen,
    merge_groups,
    named,
    store_of,
    stores_of,
    without_copies,
)
from disttrace_viewer.trace.model import Group, Job, Place, Store
from disttrace_viewer.trace.process import Clock, Process

OWN = frozenset(("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK"))
"""Variables that number a process: it bears the numbers itself, and without their values those of
many processes are alike.
"""


@dataclass(slots=True)
class Surveyed:
    """What lies in journals or states, before any operation is looked at."""

    processes: tuple[Process, ...]
    clocks: tuple[Clock, ...]
    bases: tuple[Store, ...]
    """The stores at the bottom of chains of prefixes."""
    first_base: list[int]
    """Of each process the place of its first one."""
    places: tuple[Place, ...]
    groups: tuple[Group, ...]
    """Still without ids."""
    group_index: dict[tuple[int, int], int]
    """Index of a group by (process, the process's own number of it)."""
    copies: Copies
    firsts: list[tuple[int, int]]
    jobs: tuple[Job, ...]


class Surveying:
    """Collects what journals hold of processes, by their place, in any order."""

    def __init__(self, clocks: processing.Clocks) -> None:
        self._known = clocks
        self._clocks = clocks.found()
        self._processes: dict[int, Process] = {}
        self._lives: dict[int, Life] = {}
        self._bases: dict[int, list[tuple[int, dict[str, Any]]]] = {}
        self._seen: dict[int, list[Seen]] = {}
        self._sources: dict[int, str] = {}
        self._modified: dict[int, int] = {}
        self._orphans: set[int] = set()
        self._backends: dict[str, dict[str, str]] = {}
        self._prefixes: dict[tuple[str | None, ...], tuple[str | None, ...]] = {}
        self._envs: dict[tuple[tuple[str, str], ...], dict[str, str]] = {}
        self._met: list[Met] = []

    def journal(self, place: int, journal: Journal, met: list[list[Any]] | None = None) -> None:
        """One process, with the exchanges that bound its clock, where no table will have them."""
        process = self._processes[place] = self._process(place, journal)
        clock = self._clocks[process.clock]
        self._lives[place] = life_of(process, journal, clock)
        self._sources[place] = journal.definitions.process.get("job_source") or ""
        self._modified[place] = journal.modified_ns
        if journal.orphaned:
            self._orphans.add(place)
        stores = journal.definitions.numbered["store"]
        bases = base_stores(stores)
        self._bases[place] = [(number, stores[number]) for number in bases]
        if met:
            self._met.append((place, to_unix(clock, process.t0), met))
        found = []
        for number, record in journal.definitions.numbered["group"].items():
            own = stores.get(record.get("store", -1))
            base: int | None = None
            prefix: tuple[str | None, ...] = ()
            if own is not None:
                under = own.get("base", record["store"])
                at = bases.get(under if under in stores else record["store"], -1)
                base = code_of(place, at)
                prefix = tuple(own.get("prefix") or ())
                prefix = self._prefixes.setdefault(prefix, prefix)
            if backends := record.get("backends"):
                alike = self._backends.setdefault(repr(backends), backends)
                record = {**record, "backends": alike}
            t = record.get("t")
            t_ns = None if t is None else to_unix(clock, process.t0 + t)
            found.append(
                Seen(
                    process=place,
                    number=number,
                    name=record.get("name") or "",
                    desc=record.get("desc") or None,
                    type=record.get("type") or None,
                    backends=record.get("backends") or {},
                    base=base,
                    prefix=prefix,
                    default=record.get("default", False),
                    t_ns=t_ns,
                    timeout_ns=record.get("timeout"),
                    partial=record.get("partial", False),
                    ranks=record.get("ranks"),
                    rank=record.get("rank"),
                    size=record.get("size"),
                    nth=record.get("nth"),
                )
            )
        self._seen[place] = found

    def _process(self, place: int, journal: Journal) -> Process:
        process = processing.process_of(place, journal, self._known, self._clocks)
        env = {name: "" if name in OWN else value for name, value in process.env.items()}
        return replace(process, env=self._envs.setdefault(tuple(env.items()), env))

    def together(self) -> Surveyed:
        """What they hold together."""
        count = len(self._processes)
        processes = [self._processes[i] for i in range(count)]
        processing.tell(processes, sorted(self._orphans))
        lives = until_restarts(processes, [self._lives[i] for i in range(count)])
        sources = [self._sources[i] for i in range(count)]
        lives = launching.by_launch(processes, lives, sources)
        bases: list[Store] = []
        first_base: list[int] = []
        for place in range(count):
            first_base.append(len(bases))
            for number, record in self._bases[place]:
                own = len(bases)
                bases.append(store_of(own, place, number, record, own, ""))
        places, place_ids = places_of(processes, bases, lives)
        place_ids = {index: sys.intern(identity) for index, identity in place_ids.items()}
        coded = {
            code_of(store.process, store.index - first_base[store.process]): place_ids[store.index]
            for store in bases
        }
        circles = launching.circles(processes, places)
        everywhere = (item for place in range(count) for item in self._seen.pop(place))
        groups, group_index, firsts = merge_groups(coded, everywhere, circles, lives)
        groups, copies = without_copies(groups, processes)
        modified = [self._modified[i] for i in range(count)]
        orphans: Collection[int] = frozenset(self._orphans)
        jobs = launching.jobs_of(processes, places, groups, lives, sources, orphans, modified)
        for index, store in enumerate(bases):
            bases[index] = replace(store, place=place_ids[index])
        clocks = aligned(self._clocks, processes, group_index, groups, self._met)
        known = launching.with_jobs(processes, jobs)
        if clocks != self._clocks:
            known, groups = moved_definitions(known, groups, self._clocks, clocks)
        return Surveyed(
            processes=known,
            clocks=clocks,
            bases=tuple(bases),
            first_base=first_base,
            places=places,
            groups=groups,
            group_index=group_index,
            copies=copies,
            firsts=firsts,
            jobs=jobs,
        )


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
    return Life(
        start_ns,
        end_ns,
        process.boot_id,
        ended,
        rank=None if process.is_agent else process.rank,
        sign_ns=min(sign_ns, end_ns),
    )


def base_stores(stores: Mapping[int, Mapping[str, Any]]) -> dict[int, int]:
    """The stores of a process at the bottom of chains of prefixes: their numbers, in order."""
    found = [
        n for n, store in stores.items() if (b := store.get("base", n)) == n or b not in stores
    ]
    return {number: place for place, number in enumerate(sorted(found))}


def code_of(process: int, base: int) -> int:
    """A number for the so-manieth base store of a process, before all are known."""
    return process << 20 | base if base >= 0 else -1


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
