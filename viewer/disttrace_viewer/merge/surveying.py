"""What definitions hold of processes, and all together: groups, places, launches and jobs."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from disttrace.journal.format import SEEN_GONE, UNINSTALLED
from disttrace_viewer.load.discover import Files
from disttrace_viewer.load.foreign.evidence import evidence
from disttrace_viewer.load.journals import Journal, gather
from disttrace_viewer.load.problems import Problems
from disttrace_viewer.load.schema import Record
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
from disttrace_viewer.trace.model import Group, LaunchedJob, Place, Store
from disttrace_viewer.trace.process import Clock, Process
from disttrace_viewer.trace.values import dataclass, field


@dataclass(slots=True)
class Survey:
    """What lies in journals or states, before any operation is looked at."""

    processes: tuple[Process, ...]
    clocks: tuple[Clock, ...]
    stores: tuple[Store, ...]
    places: tuple[Place, ...]
    groups: tuple[Group, ...]
    """Of states still without ids."""
    group_index: dict[tuple[int, int], int]
    """Index of a group by (process, the process's own number of it)."""
    copies: Copies
    firsts: list[tuple[int, int]]
    jobs: tuple[LaunchedJob, ...]
    paths: tuple[str, ...]
    problems: Problems
    journals: list[Journal] = field(default_factory=list)
    """By process; empty for states."""

    @property
    def store_index(self) -> dict[tuple[int, int], int]:
        """Index of a store by (process, the process's own number of it)."""
        return {(store.process, store.number): store.index for store in self.stores}


Meetings = list[list[Any]]
"""Of a process the exchanges that bound its clock, where no table will have them."""


def surveyed(
    journals: Iterable[tuple[Journal, Meetings]],
    seen: Clocks,
    paths: tuple[str, ...],
    problems: Problems,
) -> Survey:
    """What journals hold together, of which all clocks were seen; each is let go of at once."""
    clocks = seen.found()
    processes: list[Process] = []
    lives: list[Life] = []
    bases: list[Store] = []
    records: list[Mapping[int, Record]] = []
    definitions: list[Seen] = []
    sources: list[str] = []
    modified: list[int] = []
    orphans: list[int] = []
    met: list[Met] = []
    for place, (journal, meetings) in enumerate(journals):
        process = processing.process_of(place, journal, seen, clocks)
        processes.append(process)
        clock = clocks[process.clock]
        lives.append(life_of(process, journal, clock))
        sources.append(journal.definitions.process.get("job_source") or "")
        modified.append(journal.modified_ns)
        if journal.orphaned:
            orphans.append(place)
        if meetings:
            met.append((place, to_unix(clock, process.t0), meetings))
        records.append(stores := journal.definitions.numbered["store"])
        first_base = len(bases)
        for number in base_stores(stores):
            bases.append(store_of(len(bases), place, number, stores[number], len(bases), ""))
        definitions += _groups(journal, process, clock, first_base)
    processing.tell(processes, orphans)
    lives = launching.by_launch(processes, until_restarts(processes, lives), sources)
    places, place_ids = places_of(processes, bases, lives)
    place_ids = {index: sys.intern(identity) for index, identity in place_ids.items()}
    circles = launching.circles(processes, places)
    groups, group_index, firsts = merge_groups(place_ids, definitions, circles, lives)
    groups, copies = without_copies(groups, processes)
    jobs = launching.jobs_of(
        processes, places, groups, lives, sources, frozenset(orphans), modified
    )
    moved = aligned(clocks, processes, group_index, groups, met)
    known = launching.with_jobs(processes, jobs)
    if moved != clocks:
        known, groups = moved_definitions(known, groups, clocks, moved)
    base_ids = {(s.process, s.number): place_ids[s.index] for s in bases}
    return Survey(
        processes=known, clocks=moved, stores=stores_of(records, base_ids), places=places,
        groups=groups, group_index=group_index, copies=copies, firsts=firsts, jobs=jobs,
        paths=paths, problems=problems,
    )  # fmt: skip


def _groups(journal: Journal, process: Process, clock: Clock, first_base: int) -> Iterator[Seen]:
    stores = journal.definitions.numbered["store"]
    bases = base_stores(stores)
    for number, record in journal.definitions.numbered["group"].items():
        own = stores.get(record.get("store", -1))
        base: int | None = None
        prefix: tuple[str | None, ...] = ()
        if own is not None:
            under = own.get("base", record["store"])
            at = bases.get(under if under in stores else record["store"], -1)
            base = first_base + at if at >= 0 else -1
            prefix = tuple(own.get("prefix") or ())
        t = record.get("t")
        yield Seen(
            process=process.index, number=number, name=record.get("name") or "",
            desc=record.get("desc") or None, type=record.get("type") or None,
            backends=record.get("backends") or {}, base=base, prefix=prefix,
            default=record.get("default", False),
            t_ns=None if t is None else to_unix(clock, process.t0 + t),
            timeout_ns=record.get("timeout"), partial=record.get("partial", False),
            **{key: record.get(key) for key in ("ranks", "rank", "size", "nth")},
        )  # fmt: skip


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


def base_stores(stores: Mapping[int, Mapping[str, Any]]) -> dict[int, int]:
    """The stores of a process at the bottom of chains of prefixes: their numbers, in order."""
    found = [
        n for n, store in stores.items() if (b := store.get("base", n)) == n or b not in stores
    ]
    return {number: place for place, number in enumerate(sorted(found))}


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
    nothing: Meetings = []
    found = surveyed(((journal, nothing) for journal in journals), clocks, paths, problems)
    ids = [journals[process].definitions.group_id(number) or "" for process, number in found.firsts]
    found.journals = journals
    found.groups = named(found.groups, found.processes, ids)
    return found
