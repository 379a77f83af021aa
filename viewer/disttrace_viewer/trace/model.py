"""What a set of journals holds, as values: the one record type that all rules and views read.

Numbers that stand for things are indices: ``operations.process`` into ``JobTrace.processes``,
``operations.call`` into the rows of ``JobTrace.calls``, ``calls.group`` into ``JobTrace.groups``,
``calls.store`` into ``JobTrace.stores``, ``calls.stack`` into ``JobTrace.stacks``,
``operations.key`` into ``JobTrace.keys`` and ``operations.error`` into ``JobTrace.errors``. Times
are unix nanoseconds after alignment (see ``disttrace_viewer.merge.clock``). The columns of both
tables are in ``disttrace_viewer.trace.columns``.
"""

from __future__ import annotations

import collections
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from disttrace_viewer.trace.process import Clock, Frame, Problem, Process, Stack
from disttrace_viewer.trace.values import dataclass, field, fields, together

if TYPE_CHECKING:
    import polars as pl


class Place(NamedTuple):
    """Where processes meet: one store server, seen from all of its clients."""

    id: str
    kind: str
    """``tcp``, ``file``, ``hash`` or ``unknown``."""
    name: str
    """``tcp://host:port`` as the server, else most clients, call it."""
    server: int | None
    """Index of the process that listens; None where no traced process is known to."""
    processes: tuple[int, ...]


def lead_of(prefix: Iterable[str | None]) -> str:
    """Every prefix with a slash, ``?`` for an unknown one: what stands before a key."""
    return "".join(f"{'?' if part is None else part}/" for part in prefix)


@dataclass(frozen=True, slots=True)
class Store:
    """A store object of one process; ``index`` is its place in ``JobTrace.stores``."""

    index: int
    process: int
    number: int
    type: str
    name: str | None
    base: int | None
    """Index of the store at the bottom of the chain of prefixes (itself where there is none)."""
    prefix: tuple[str | None, ...]
    host: str | None
    port: int | None
    server: bool
    address: str | None
    path: str | None
    place: str
    """Id of its ``Place``."""
    connection: int | None = None
    """Number of the clone over whose connection its operations go; null: over the base's own."""
    timeout_ns: int | None = None
    """For which its questions wait, where that was set."""

    @property
    def lead(self) -> str:
        return lead_of(self.prefix)


class Reported(NamedTuple):
    """Ranks of hosts whose states are not at hand: they wait in the same call as two processes."""

    like: tuple[int, int]
    """Where there is one, twice that."""
    group: int
    """In which the second one waits; -1: it is still to be made."""
    ranks: tuple[int, ...]
    groups: int
    """In so many other groups of its make; 0: in that very one; -1: they wait in no collective."""


@dataclass(frozen=True, slots=True)
class Member:
    """A process's own view of a group it is in."""

    process: int
    number: int
    rank: int | None
    """Group rank."""
    t_ns: int | None
    desc: str | None = None


@dataclass(frozen=True, slots=True)
class Group:
    """One process group, merged over all processes that hold it."""

    id: str
    index: int
    name: str
    desc: str | None
    type: str | None
    backends: Mapping[str, str]
    ranks: tuple[int, ...] | None
    """Global ranks by group rank; None where the group knows none."""
    size: int | None
    default: bool
    place: str | None
    """Id of the ``Place`` it met in; None where the store is unknown."""
    prefix: tuple[str | None, ...]
    members: tuple[Member, ...]
    """Every traced process in it, by group rank; for a reported rank the one that it waits with."""
    timeout_ns: int | None = None
    """After which its backend gives an operation up."""
    partial: bool = False
    """``ranks`` are those that were seen in it: there may be others."""

    @property
    def described(self) -> str:
        """What the program calls it; empty for torch's own words, and an object's address."""
        desc = self.desc or ""
        return "" if desc in ("undefined", "default_pg") or "0x" in desc else desc

    @property
    def missing(self) -> tuple[int, ...]:
        """Group ranks of which no process was seen."""
        seen = {m.rank for m in self.members}
        return tuple(r for r in range(self.size or 0) if r not in seen)

    def global_rank(self, group_rank: int | None) -> int | None:
        """The global rank of a group rank, where global ranks exist."""
        if group_rank is None or self.ranks is None or not 0 <= group_rank < len(self.ranks):
            return None
        return self.ranks[group_rank]


@dataclass(frozen=True, slots=True)
class LaunchedJob:
    """One launch: the processes that one command started, over all hosts and restarts."""

    id: str
    index: int
    processes: tuple[int, ...]
    start_ns: int
    last_ns: int
    linked: tuple[str, ...]
    """Ids of other jobs whose processes met processes of this one."""
    known: bool = True
    """Whether a process of it is known by more than the names of its files."""
    names: tuple[str, ...] = ()
    """What its processes call it, and how files of the job are named; launches may share a name."""


Stream = tuple[int | None, str | None]
"""Group and backend: what numbers collectives."""


@dataclass(frozen=True, slots=True)
class Signature:
    """What calls of many processes share: all but whose they are, and by which objects."""

    op: str
    kind: str
    backend: str | None
    device: str | None
    asynchronous: bool | None
    shapes: tuple[tuple[int, ...], ...] | None
    dtypes: tuple[str, ...] | None
    bytes: int | None
    splits: Any
    reduce_op: str | None
    root: int | None
    """Group rank."""
    peer: int | None
    """Group rank."""
    tag: int | None
    name: str | None
    origin: str | None
    args: Mapping[str, Any]


def named(op: str, args: Mapping[str, Any]) -> str:
    """``all_gather_into_tensor of layers.3`` where FSDP called for a module."""
    return f"{op} of {args['module']}" if args.get("module") else op


class _OfSignature:
    """What a call has by its signature, to be read of itself."""

    __slots__ = ()
    if TYPE_CHECKING:
        op: str
        kind: str
        backend: str | None
        asynchronous: bool | None
        shapes: tuple[tuple[int, ...], ...] | None
        dtypes: tuple[str, ...] | None
        bytes: int | None
        reduce_op: str | None
        root: int | None
        peer: int | None
        tag: int | None
        name: str | None
        origin: str | None
        args: Mapping[str, Any]


for _field in fields(Signature):
    setattr(_OfSignature, _field.name, property(attrgetter(f"signature.{_field.name}")))


@dataclass(frozen=True, slots=True)
class Call(_OfSignature):
    """What all operations from one place with one signature share."""

    index: int
    process: int
    group: int | None
    group_rank: int | None
    """The process's own rank in it."""
    store: int | None
    stack: Stack
    """The call site; empty where Python had no frame."""
    signature: Signature

    @property
    def named(self) -> str:
        """``op``, and the module for which FSDP called."""
        return named(self.op, self.args)

    @property
    def stream(self) -> Stream:
        return self.group, self.signature.backend


class Key(NamedTuple):
    """The key of a store operation without prefixes; ``many`` if the call takes a list."""

    parts: tuple[str, ...]
    many: bool


@dataclass(frozen=True)
class Tables:
    """All operations of a trace, their calls and what completed on devices, as columns."""

    operations: pl.DataFrame
    calls: pl.DataFrame
    completions: pl.DataFrame


@dataclass(frozen=True)
class JobTrace:
    """Everything read from a set of journals. See the module's docstring for how it refers."""

    processes: tuple[Process, ...]
    tables: Tables | None
    """None where states were read, which know of the few operations that rules look at."""
    groups: tuple[Group, ...]
    stores: tuple[Store, ...]
    places: tuple[Place, ...]
    jobs: tuple[LaunchedJob, ...]
    """The jobs whose operations are in this trace."""
    other_jobs: tuple[LaunchedJob, ...]
    """Jobs in the same folders that were not requested (their ``processes`` are empty)."""
    of_others: frozenset[str]
    """Ids of the processes of those."""
    clocks: tuple[Clock, ...]
    stacks: tuple[Stack, ...]
    errors: tuple[str, ...]
    keys: tuple[Key, ...]
    problems: tuple[Problem, ...]
    paths: tuple[str, ...]
    read_ns: int
    """Unix time at which reading began: what was written later is not here."""
    reported: tuple[Reported, ...] = ()
    elsewhere: frozenset[int] = frozenset()
    """All ranks of hosts of which no states were requested, wherever they wait."""
    all_calls: Sequence[Call] = field(default=(), repr=False, compare=False)
    """In the order of the rows of ``calls``."""

    @property
    def operations(self) -> pl.DataFrame:
        """One row per operation, by its begin."""
        return self._whole.operations

    @property
    def calls(self) -> pl.DataFrame:
        """One row per call, which operations name by its number."""
        return self._whole.calls

    @property
    def completions(self) -> pl.DataFrame:
        return self._whole.completions

    @property
    def _whole(self) -> Tables:
        if self.tables is None:
            raise TypeError("a trace of states has no table of all operations")
        return self.tables

    def ranks_of(self, processes: Collection[int], group: int | None = None) -> list[int]:
        """Their ranks, and the reported ones that wait with them; ``group``: only in that one."""
        found = [rank for one in processes if (rank := self.processes[one].rank) is not None]
        return [*found, *self._reported_with(processes, group)]

    def count(self, processes: Collection[int], group: int | None = None) -> int:
        """How many they are, with the reported ones."""
        return len(processes) + len(self._reported_with(processes, group))

    def _reported_with(self, processes: Collection[int], group: int | None) -> set[int]:
        if not self.reported or len(processes) < 2:
            return set()
        known = {*processes}
        return {
            rank
            for one in self.reported
            if known.issuperset(one.like)
            and (not one.groups or one.group < 0)
            and group in (None, one.group)
            for rank in one.ranks
        }

    @cached_property
    def waits_with(self) -> Mapping[int, int]:
        """By reported rank the process that waits in the same call."""
        return {rank: one.like[-1] for one in self.reported for rank in one.ranks}

    @cached_property
    def reported_by(self) -> Mapping[int, Sequence[Reported]]:
        """By the second one of those that they wait with."""
        return together((one.like[-1], one) for one in self.reported)

    @cached_property
    def by_id(self) -> Mapping[str, Process]:
        return {p.id: p for p in self.processes}

    @cached_property
    def group_by_id(self) -> Mapping[str, Group]:
        return {g.id: g for g in self.groups}

    @cached_property
    def groups_by_process(self) -> Mapping[int, frozenset[int]]:
        """Indices of the groups that each process is a member of."""
        found = together((m.process, group.index) for group in self.groups for m in group.members)
        return {process: frozenset(groups) for process, groups in found.items()}

    @cached_property
    def children(self) -> Mapping[str, Sequence[int]]:
        return together((p.parent, p.index) for p in self.processes if p.parent is not None)

    @cached_property
    def groups_of(self) -> Mapping[tuple[int, ...] | None, int]:
        return collections.Counter(group.ranks for group in self.groups)

    @cached_property
    def place_by_id(self) -> Mapping[str, Place]:
        return {p.id: p for p in self.places}

    @cached_property
    def short_ids(self) -> tuple[str, ...]:
        """Per process the shortest prefix of its id, of at least 8, that no other one has."""
        length = 8
        ids = [p.id for p in self.processes]
        while len({i[:length] for i in ids}) < len(set(ids)):
            length += 4
        return tuple(i[:length] for i in ids)

    @cached_property
    def launch_ns(self) -> int:
        """When the first process began: the zero of all offsets, on every surface."""
        return min((p.start_ns for p in self.processes), default=0)

    @cached_property
    def end_ns(self) -> int:
        """Newest sign of life of any process: the instant at which the picture stops."""
        return max((p.last_ns for p in self.processes), default=0)

    def parent_of(self, process: Process) -> Process | None:
        return None if process.parent is None else self.by_id.get(process.parent)

    def call(self, index: int) -> Call:
        """One row of ``calls`` as a value."""
        return self.all_calls[index]

    def group_of(self, call: Call) -> Group | None:
        return None if call.group is None else self.groups[call.group]

    def group_id(self, call: Call) -> str | None:
        return None if call.group is None else self.groups[call.group].id

    def store_of(self, call: Call) -> Store | None:
        return None if call.store is None else self.stores[call.store]

    def place_of(self, call: Call) -> str | None:
        """The id of the ``Place`` of that store."""
        return None if call.store is None else self.stores[call.store].place

    def full_key(self, call: int, key: int | None) -> str | list[str] | None:
        """The key of an operation with every prefix joined, ``?`` for an unknown one."""
        if key is None:
            return None
        store = self.store_of(self.call(call))
        lead = "" if store is None else store.lead
        entry = self.keys[key]
        parts = [lead + part for part in entry.parts]
        return parts if entry.many else parts[0]


@dataclass(frozen=True, slots=True)
class CodeLocation:
    """Where a process is or called from; ``op`` is null outside communication."""

    process: int
    file: str
    line: int
    function: str
    op: str | None

    @classmethod
    def at(cls, process: int, frame: Frame, op: str | None = None) -> CodeLocation:
        return cls(process, frame.file, frame.line, frame.function, op)


@dataclass(frozen=True, slots=True)
class Blame:
    """What ``diagnose`` reports of waiting that never ended, for all tables."""

    of: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    """By process that waits: the culprits of the finding that explains it."""
    lines: Mapping[int, str] = field(default_factory=dict)
    """By culprit: where it is (``file:line``)."""


NOT_KNOWN = Blame()
