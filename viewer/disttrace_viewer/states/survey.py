"""What the definitions in all states say together: processes, groups and jobs.

States are gone through by the batch, and nothing of them is kept but what the result is made of.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from disttrace.journal.format import ranks_of
from disttrace_viewer.load.definitions import LISTED, NUMBERED, Definitions
from disttrace_viewer.load.discover import Files
from disttrace_viewer.load.journals import Journal
from disttrace_viewer.load.problems import CUT_OFF, Problems
from disttrace_viewer.merge import groups as grouping
from disttrace_viewer.merge import jobs as launching
from disttrace_viewer.merge import processes as processing
from disttrace_viewer.merge.clock import moved_definitions, to_unix
from disttrace_viewer.merge.meetings import Met, aligned
from disttrace_viewer.merge.store_servers import Life, places_of, until_restarts
from disttrace_viewer.merge.survey import life_of
from disttrace_viewer.merge.tables import seen, store_of
from disttrace_viewer.states.packed import batches_of
from disttrace_viewer.states.state import State
from disttrace_viewer.trace.model import Clock, Group, Job, Place, Problem, Process, Store

OF_PROCESSES = ("stack", "store", "group")
"""Kinds of definitions from which processes and groups are made; names of threads nobody asks for
where there is no table of operations.
"""
OWN = frozenset(("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK"))
"""Variables that number a process: it bears the numbers itself, and without their values those of
many processes are alike.
"""
OF_MANY = ("job", "host", "boot_id", "role", "cwd", "run", "parent")
"""Words that the records of many processes are alike in: one object for all."""


@dataclass(slots=True)
class StateSurvey:
    """What lies in states, before any operation is looked at."""

    index: dict[str, int]
    """Place of a process by its id."""
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
    copies: grouping.Copies
    firsts: list[tuple[int, int]]
    jobs: tuple[Job, ...]
    problems: Problems
    partial: frozenset[int]
    """Processes of whose journals only a part was read."""
    unsettled: bool
    """Some process is not done with a group that it makes, or failed to make it."""
    paths: tuple[str, ...]
    """Of the first journal in each folder, without its suffix."""
    made: list[int]
    """By process the hash of the groups that it made."""

    @property
    def alike(self) -> bool:
        """Whether all processes made the same groups, and came to an end with it: then no rule can
        have a use for creations that are over.
        """
        if self.unsettled:
            return False
        joined: set[int] = set()
        for group in self.groups:
            if group.default:
                members = [m.process for m in group.members]
                if len({self.made[i] for i in members}) > 1 or joined & {*members}:
                    return False
                joined.update(members)
        return True


def survey(states: Mapping[str, State], only: Collection[str] | None = None) -> StateSurvey:
    """What all states say, or those of some processes."""
    order: list[tuple[int, str]] = []
    clocks = processing.Clocks()
    told: list[tuple[str, list[Any]]] = []
    for batch in batches_of(states):
        for state in batch:
            if only is not None and state["id"] not in only:
                continue
            journal = journal_of(state, ())
            start = state["process"].get("start_ns", state["modified_ns"])
            order.append((start, journal.id))
            clocks.add(journal)
            if state["problems"]:
                told.append((state["id"], state["problems"]))
    order.sort()
    index = {identity: place for place, (_, identity) in enumerate(order)}
    del order
    building = _Surveying(index, clocks)
    for batch in batches_of(states):
        for state in batch:
            if state["id"] in index:
                building.take(state)
    return building.done(_problems(told))


def journal_of(state: State, kinds: Collection[str] = NUMBERED) -> Journal:
    """A journal with as much of its definitions as the state has, of some kinds."""
    definitions = _Known(state["base"])
    definitions.process = state["process"]
    definitions.identity = state["identity"]
    definitions.versions = state["versions"]
    definitions.source = state.get("source") or {}
    definitions.last_t = state["last_t"]
    definitions.listed = {**_NONE_LISTED, **state["listed"]} if state["listed"] else _NONE_LISTED
    numbered = definitions.numbered
    for kind in kinds:
        record = _RECORDS.get(kind)
        numbered[kind] = {
            int(n): value if record is None else record(value)
            for n, value in state["numbered"].get(kind, {}).items()
        }
    return Journal(
        id=sys.intern(state["id"]),
        files=Files(state["base"], state["base"]),
        definitions=definitions,
        from_name=state["named"],
        modified_ns=state["modified_ns"],
        head_t=state["head_t"],
    )


_NONE_LISTED: dict[str, list[Any]] = {kind: [] for kind in LISTED}


class _Known(Definitions):
    """Definitions whose stacks bear names already."""

    __slots__ = ()

    def frames(self, number: int | None) -> list[tuple[str, int, str]]:
        """The frames of a stack."""
        found = self.get("stack", number)
        return [] if found is None else [(file, line, name) for file, line, name in found["frames"]]


def _group(value: dict[str, Any]) -> dict[str, Any]:
    return {**value, "ranks": ranks_of(value["ranks"])} if "ranks" in value else value


_RECORDS: dict[str, Callable[[Any], dict[str, Any]]] = {
    "string": lambda value: {"v": value},
    "stack": lambda value: {"frames": value},
    "group": _group,
}


def _problems(told: list[tuple[str, list[Any]]]) -> Problems:
    problems = Problems()
    for _, found in sorted(told):
        for path, kind, sentence in found:
            if kind == CUT_OFF:
                problems.cut_off[path] = None
            else:
                problems.take(Problem(path=path, kind=kind, sentence=sentence))
    return problems


class _Surveying:
    """Collects what states say of processes, by their place, in any order."""

    def __init__(self, index: dict[str, int], clocks: processing.Clocks) -> None:
        self.index = index
        self.known = clocks
        self.clocks = clocks.found()
        self.processes: dict[int, Process] = {}
        self.lives: dict[int, Life] = {}
        self.bases: dict[int, list[tuple[int, dict[str, Any]]]] = {}
        self.seen: dict[int, list[grouping.Seen]] = {}
        self.sources: dict[int, str] = {}
        self.modified: dict[int, int] = {}
        self.made: dict[int, int] = {}
        self.met: list[Met] = []
        self.folders: dict[str, str] = {}
        self.orphans: set[int] = set()
        self.partial: set[int] = set()
        self.unsettled = False
        self._argv: dict[tuple[str, ...], tuple[str, ...]] = {}
        self._envs: dict[tuple[tuple[str, str], ...], dict[str, str]] = {}
        self._backends: dict[str, dict[str, str]] = {}
        self._versions: dict[str, dict[str, Any]] = {}
        self._prefixes: dict[tuple[str | None, ...], tuple[str | None, ...]] = {}

    def take(self, state: State) -> None:
        """One state."""
        place = self.index[state["id"]]
        told = state["process"]
        self.folders.setdefault(os.path.dirname(state["base"]), state["base"])
        for record in (told, state["identity"]):
            for name in OF_MANY:
                if type(word := record.get(name)) is str:
                    record[name] = sys.intern(word)
        told["argv"] = argv = tuple(told.get("argv") or ())
        told["argv"] = self._argv.setdefault(argv, argv)
        state["versions"] = self._versions.setdefault(repr(state["versions"]), state["versions"])
        journal = journal_of(state, OF_PROCESSES)
        process = processing.process_of(place, journal, self.known, self.clocks)
        env = {name: "" if name in OWN else value for name, value in process.env.items()}
        process = replace(process, env=self._envs.setdefault(tuple(env.items()), env))
        self.processes[place] = process
        self.lives[place] = life_of(process, journal, self.clocks[process.clock])
        self.sources[place] = journal.definitions.process.get("job_source") or ""
        self.modified[place] = journal.modified_ns
        self.made[place] = state["made"]
        if met := state.get("met"):
            self.met.append((place, to_unix(self.clocks[process.clock], process.t0), met))
        self.unsettled |= state["unsettled"]
        if journal.orphaned:
            self.orphans.add(place)
        if state["read"] < state["size"]:
            self.partial.add(place)
        stores = journal.definitions.numbered["store"]
        bases = base_stores(stores)
        self.bases[place] = [(number, stores[number]) for number in bases]
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
            t_ns = None if t is None else to_unix(self.clocks[process.clock], process.t0 + t)
            found.append(seen(place, number, record, base, prefix, t_ns))
        self.seen[place] = found

    def done(self, problems: Problems) -> StateSurvey:
        """What they say together."""
        count = len(self.index)
        processes = [self.processes[i] for i in range(count)]
        processing.tell(processes, sorted(self.orphans))
        lives = until_restarts(processes, [self.lives[i] for i in range(count)])
        sources = [self.sources[i] for i in range(count)]
        lives = launching.by_launch(processes, lives, sources)
        bases: list[Store] = []
        first_base: list[int] = []
        for place in range(count):
            first_base.append(len(bases))
            for number, record in self.bases[place]:
                own = len(bases)
                bases.append(store_of(own, place, number, record, own, ""))
        places, place_ids = places_of(processes, bases, lives)
        place_ids = {index: sys.intern(identity) for index, identity in place_ids.items()}
        coded = {
            code_of(store.process, store.index - first_base[store.process]): place_ids[store.index]
            for store in bases
        }
        circles = launching.circles(processes, places)
        everywhere = (item for place in range(count) for item in self.seen.pop(place))
        groups, group_index, firsts = grouping.merge(coded, everywhere, circles, lives)
        groups, copies = grouping.without_copies(groups, processes)
        modified = [self.modified[i] for i in range(count)]
        orphans = frozenset(self.orphans)
        jobs = launching.jobs_of(processes, places, groups, lives, sources, orphans, modified)
        for index, store in enumerate(bases):
            bases[index] = replace(store, place=place_ids[index])
        clocks = aligned(self.clocks, processes, group_index, groups, self.met)
        known = launching.with_jobs(processes, jobs)
        if clocks != tuple(self.clocks):
            known, groups = moved_definitions(known, groups, self.clocks, clocks)
        return StateSurvey(
            index=self.index,
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
            problems=problems,
            partial=frozenset(self.partial),
            paths=tuple(self.folders.values()),
            unsettled=self.unsettled,
            made=[self.made[i] for i in range(count)],
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
