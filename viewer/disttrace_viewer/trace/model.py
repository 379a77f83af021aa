"""What a set of journals says, as values: the one record type that all rules and views read.

Numbers that stand for things are indices: ``operations.process`` into ``Trace.processes``,
``operations.call`` into the rows of ``Trace.calls``, ``calls.group`` into ``Trace.groups``,
``calls.store`` into ``Trace.stores``, ``calls.stack`` into ``Trace.stacks``, ``operations.key``
into ``Trace.keys`` and ``operations.error`` into ``Trace.errors``. Times are unix nanoseconds after
alignment (see ``disttrace_viewer.merge.clock``). The columns of both tables are in
``disttrace_viewer.trace.columns``. Long, since each type refers to the others.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson

from disttrace.journal.format import ranks_of

if TYPE_CHECKING:
    import polars as pl


class Frame(NamedTuple):
    """One Python frame of a call site."""

    file: str
    line: int
    function: str


Stack = tuple[Frame, ...]
"""Frames, innermost first, starting at the user's frame."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Something about the input that did not read as it should; ``sentence`` says it in full."""

    path: str
    kind: str
    """A short stable word for the kind of damage (``torn``, ``noise``, ``newer format``, ...)."""
    sentence: str
    """Which file, what is wrong, what was still used, what to do."""


@dataclass(frozen=True, slots=True)
class Exit:
    """The last word of a process about itself."""

    how: str
    code: int | None
    t_ns: int
    stack: Stack = ()
    """Where the program asked for it (``sys.exit``, ``os._exit``)."""
    causes: tuple[str, ...] = ()
    """``Type: first line`` of what was being handled then, nearest first."""


@dataclass(frozen=True, slots=True)
class Failure:
    """An exception that nobody caught, or that a thread handles."""

    t_ns: int
    type: str
    text: str
    stack: Stack
    thread: int
    causes: tuple[str, ...] = ()
    """``Type: first line`` of the exceptions that it was raised from, nearest first."""

    @property
    def chain(self) -> tuple[str, ...]:
        """Itself as ``Type: first line``, then its causes."""
        return (f"{self.type}: {self.text}" if self.text else self.type, *self.causes)


@dataclass(frozen=True, slots=True)
class Note:
    """Something of disttrace itself failed or was left out in a process."""

    t_ns: int
    text: str


@dataclass(frozen=True, slots=True)
class Thread:
    """A thread of a process, by the journal's number (0 opened the journal)."""

    number: int
    name: str
    native: int | None


@dataclass(frozen=True, slots=True)
class StackSample:
    """Where a thread stood when nothing had begun or ended for a while."""

    t_ns: int
    stack: Stack


@dataclass(frozen=True, slots=True)
class Dropped:
    """A segment that was given up to stay within ``DISTTRACE_MAX_MB``."""

    segment: int
    from_ns: int | None
    to_ns: int | None
    operations: int | None


@dataclass(frozen=True, slots=True)
class Worker:
    """What a process knows of one that it launched."""

    t_ns: int
    pid: int
    event: str
    """``started``, ``exited``, ``failed`` (by itself) or ``killed`` (told to end)."""
    rank: int | None
    attempt: int | None
    code: int | None
    """Exit code; -N for signal N."""
    error: str | None
    """Text of its error file."""
    left_journal: bool = True
    """False: its launcher found none when it had ended."""


@dataclass(frozen=True, slots=True)
class Sighting:
    """What the companion of a process's host saw of it, and wrote down for later."""

    t_ns: int
    state: str
    """``gone`` or ``stopped`` (``disttrace.journal.format``)."""
    code: int | None
    """Exit code of one that was a zombie then; -N for signal N."""
    others: int
    """So many other processes of the job lived on that host then."""


@dataclass(frozen=True, slots=True)
class Trouble:
    """What somebody who needs no program's help said of a process's host, at a stall."""

    t_ns: int
    """When that came about, or was asked."""
    by: str
    """``kernel log``, ``nvidia-smi`` or ``NCCL RAS``."""
    where: str
    """``host``, ``device`` or ``link`` (``disttrace.journal.format``)."""
    name: str | None
    """Of the device, interface or node, as they call it."""
    code: int | None
    """Number of an Xid."""
    mine: bool
    """Whether it names this very process; else it is of the whole host."""
    text: str | None
    """Its own words; None where they were not told to other hosts."""


JOURNAL = "journal"


@dataclass(frozen=True, slots=True)
class Digest:
    """A checksum of what has to be equal in all members of a group."""

    t_ns: int
    group: str
    """The group's id."""
    op: str
    """Whose result it is of; ``expect_equal``: of what the program gave."""
    name: str | None
    number: int
    """Of the call, counted by group, ``op`` and ``name``."""
    value: int
    stack: Stack


@dataclass(frozen=True, slots=True)
class Process:
    """One traced process; ``index`` is its place in ``Trace.processes``."""

    id: str
    index: int
    job: str
    role: str
    """``agent``, ``worker``, ``child``, ``main``, or ``unknown`` without a definition."""
    rank: int | None
    local_rank: int | None
    world_size: int | None
    host: str
    boot_id: str | None
    pid: int | None
    ppid: int | None
    parent: str | None
    attempt: int | None
    run: str | None
    argv: tuple[str, ...]
    cwd: str | None
    start_ns: int
    last_ns: int
    """Newest sign of life: of any record that bears a time, heartbeats included."""
    heartbeat_ns: int | None
    exit: Exit | None
    failures: tuple[Failure, ...]
    threads: Mapping[int, Thread]
    latest_samples: Mapping[int, StackSample]
    """The latest sample per thread number."""
    samples: tuple[StackSample, ...]
    """Every stack sample of the main thread, by time."""
    notes: tuple[Note, ...]
    dropped: tuple[Dropped, ...]
    workers: tuple[Worker, ...]
    told: Worker | None
    """How it ended, by the word of the traced process that launched it; null: not a word."""
    node: str | None
    """What torchrun's rendezvous calls the agent's node."""
    versions: Mapping[str, Any]
    """``torch``, ``backends``, ``not_captured``, ``parts`` as the journal has them."""
    env: Mapping[str, str]
    """The rank variables present at start: inherited by children, so claims and no facts."""
    settings: Mapping[str, Any]
    damage: tuple[str, ...]
    """Sentences of the problems in this process's own files."""
    losses: tuple[str, ...]
    """Sentences about what is lost of its journal: what is in no record may have happened."""
    paths: tuple[str, ...]
    clock: int
    """Index into ``Trace.clocks``."""
    t0: int
    """Absolute monotonic reading from which the journal's ``t`` counts."""
    pid_ns: int | None = None
    """Inode of its namespace of pids."""
    time_ns: int | None = None
    """Inode of its namespace of time."""
    ticks: int | None = None
    """Clock ticks from boot to its start; with ``boot_id``, ``pid_ns`` and ``pid`` it is one
    process only of all that ever were."""
    source: str = JOURNAL
    """What it was read from: ``journal``, or the kind of another tool's evidence."""
    lacks: frozenset[str] = frozenset()
    """What that evidence does not hold (``docs/journal.md``); of a journal nothing is named."""
    sightings: tuple[Sighting, ...] = ()
    """What was seen of it from outside, by time."""
    troubles: tuple[Trouble, ...] = ()
    """Of its host; in the journal of one of its processes each."""
    handling: tuple[Failure, ...] = ()
    """What its threads handled when they were last looked at, ``t_ns`` when that was first seen."""
    digests: tuple[Digest, ...] = ()
    """Of what it had that others have to have equal, by time."""

    @property
    def failure(self) -> Failure | None:
        """The first uncaught exception, or None."""
        return self.failures[0] if self.failures else None

    @property
    def label(self) -> str:
        """``rank 3``, ``agent 4711`` or ``child 4712``: how to call it in a sentence."""
        return (
            f"rank {self.rank}"
            if self.rank is not None
            else f"{self.role} {self.pid or self.id[:8]}"
        )


@dataclass(frozen=True, slots=True)
class Clock:
    """The clock shared by all processes of one boot: unix = monotonic + offset (+ drift)."""

    boot_id: str
    host: str
    offset_ns: int
    error_ns: int
    drift: float = 0.0
    """Seconds gained per second against the reference clock, counted from ``origin_ns``."""
    origin_ns: int = 0
    """Monotonic reading at which ``offset_ns`` holds exactly."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where processes meet: one store server, seen from all of its clients."""

    id: str
    kind: str
    """``tcp``, ``file``, ``hash`` or ``unknown``."""
    name: str
    """``tcp://host:port`` as the server, else most clients, call it."""
    server: int | None
    """Index of the process that listens; None where no traced process is known to."""
    processes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Store:
    """A store object of one process; ``index`` is its place in ``Trace.stores``."""

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

    @property
    def lead(self) -> str:
        """Every prefix with a slash, ``?`` for an unknown one: what stands before a key."""
        return "".join(f"{'?' if p is None else p}/" for p in self.prefix)


@dataclass(frozen=True, slots=True)
class Member:
    """A process's own view of a group it is in."""

    process: int
    number: int
    rank: int | None
    """Group rank."""
    t_ns: int | None


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
    nth: int | None
    members: tuple[Member, ...]
    """Every traced process in it, by group rank, then process."""
    timeout_ns: int | None = None
    """After which its backend gives an operation up; of backends of devices."""
    partial: bool = False
    """``ranks`` are those that were seen in it: there may be others."""

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
class Job:
    """One launch: the processes that one command started, over all hosts and restarts."""

    id: str
    index: int
    processes: tuple[int, ...]
    start_ns: int
    last_ns: int
    linked: tuple[str, ...]
    """Ids of other jobs whose processes met processes of this one."""
    source: str
    """How its members were found to belong together."""
    known: bool = True
    """Whether a process of it is known by more than the names of its files."""
    names: tuple[str, ...] = ()
    """What its processes call it: files that are the job's are named so. Launches of one name share
    it, and ranks that nobody launched together draw one each.
    """
    parents: tuple[str, ...] = ()
    """Ids of other jobs of which a process started one of this job's."""


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


@dataclass(frozen=True, slots=True)
class Call:
    """What all operations from one place with one signature share, which also stands here."""

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
    def op(self) -> str:
        return self.signature.op

    @property
    def kind(self) -> str:
        return self.signature.kind

    @property
    def backend(self) -> str | None:
        return self.signature.backend

    @property
    def device(self) -> str | None:
        return self.signature.device

    @property
    def asynchronous(self) -> bool | None:
        return self.signature.asynchronous

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...] | None:
        return self.signature.shapes

    @property
    def dtypes(self) -> tuple[str, ...] | None:
        return self.signature.dtypes

    @property
    def bytes(self) -> int | None:
        return self.signature.bytes

    @property
    def splits(self) -> Any:
        return self.signature.splits

    @property
    def reduce_op(self) -> str | None:
        return self.signature.reduce_op

    @property
    def root(self) -> int | None:
        return self.signature.root

    @property
    def peer(self) -> int | None:
        return self.signature.peer

    @property
    def tag(self) -> int | None:
        return self.signature.tag

    @property
    def name(self) -> str | None:
        return self.signature.name

    @property
    def handler(self) -> bool:
        """Whether a handler of signals made it."""
        return self.signature.args.get("handler") is True

    @property
    def origin(self) -> str | None:
        return self.signature.origin

    @property
    def args(self) -> Mapping[str, Any]:
        return self.signature.args


@dataclass(frozen=True, slots=True)
class Key:
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
class Trace:
    """Everything read from a set of journals. See the module's docstring for how it refers."""

    processes: tuple[Process, ...]
    tables: Tables | None
    """None where states were read, which know of the few operations that rules look at."""
    groups: tuple[Group, ...]
    stores: tuple[Store, ...]
    places: tuple[Place, ...]
    jobs: tuple[Job, ...]
    """The jobs whose operations are in this trace."""
    other_jobs: tuple[Job, ...]
    """Jobs in the same folders that were not asked for (their ``processes`` are empty)."""
    clocks: tuple[Clock, ...]
    stacks: tuple[Stack, ...]
    errors: tuple[str, ...]
    keys: tuple[Key, ...]
    problems: tuple[Problem, ...]
    paths: tuple[str, ...]
    read_ns: int
    """Unix time at which reading began: what was written later is not here."""
    _calls: dict[int, Call] | list[Call] = field(default_factory=dict, repr=False, compare=False)
    """Rows that were asked for; of states, which have no table, all of them."""

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
        """When work was done on devices."""
        return self._whole.completions

    @property
    def _whole(self) -> Tables:
        if self.tables is None:
            raise TypeError("a trace of states has no table of all operations")
        return self.tables

    @cached_property
    def by_id(self) -> Mapping[str, Process]:
        """Processes by their id."""
        return {p.id: p for p in self.processes}

    @cached_property
    def group_by_id(self) -> Mapping[str, Group]:
        """Groups by their id."""
        return {g.id: g for g in self.groups}

    @cached_property
    def groups_by_process(self) -> Mapping[int, frozenset[int]]:
        """Indices of the groups that each process is a member of."""
        found: dict[int, set[int]] = {}
        for group in self.groups:
            for member in group.members:
                found.setdefault(member.process, set()).add(group.index)
        return {process: frozenset(groups) for process, groups in found.items()}

    @cached_property
    def children(self) -> Mapping[str, tuple[int, ...]]:
        """Processes by their parent's id."""
        found: dict[str, list[int]] = {}
        for process in self.processes:
            if process.parent is not None:
                found.setdefault(process.parent, []).append(process.index)
        return {parent: tuple(children) for parent, children in found.items()}

    @cached_property
    def groups_of(self) -> Mapping[tuple[int, ...] | None, int]:
        """How many groups have these members."""
        return collections.Counter(group.ranks for group in self.groups)

    @cached_property
    def place_by_id(self) -> Mapping[str, Place]:
        """Meeting places by their id."""
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
    def end_ns(self) -> int:
        """Newest sign of life of any process: the instant at which the picture stops."""
        return max((p.last_ns for p in self.processes), default=0)

    def operation_id(self, process: int, number: int) -> str:
        """The id of an operation, the same in every export and in ``diagnose``."""
        return f"{self.short_ids[process]}.{number}"

    def call(self, index: int) -> Call:
        """One row of ``calls`` as a value (kept, since rules ask for the same few again)."""
        if isinstance(self._calls, list):
            return self._calls[index]
        found = self._calls.get(index)
        if found is None:
            row = self.calls.row(index, named=True)
            stack = () if row["stack"] is None else self.stacks[row["stack"]]
            found = self._calls[index] = _call(index, row, stack)
        return found

    def stack(self, call: int) -> Stack:
        """The call site of a call; empty where Python had no frame."""
        return self.call(call).stack

    def full_key(self, call: int, key: int | None) -> str | list[str] | None:
        """The key of an operation with every prefix joined, ``?`` for an unknown one."""
        if key is None:
            return None
        store = self.call(call).store
        lead = self.stores[store].lead if store is not None else ""
        entry = self.keys[key]
        parts = [lead + part for part in entry.parts]
        return parts if entry.many else parts[0]

    def replace(self, **changes: Any) -> Trace:
        """A copy with other values in some fields."""
        return dataclasses.replace(self, **changes, _calls={})


_OF_SIGNATURE = tuple(field.name for field in dataclasses.fields(Signature))


def _call(index: int, row: dict[str, Any], stack: Stack) -> Call:
    shapes, dtypes, splits, args = (row[name] for name in ("shapes", "dtypes", "splits", "args"))
    read = {
        "asynchronous": row["async"],
        "shapes": None if shapes is None else tuple(tuple(s) for s in shapes),
        "dtypes": None if dtypes is None else tuple(dtypes),
        "splits": None if splits is None else orjson.loads(splits),
        "args": {} if args is None else _args(args),
    }
    as_they_are = {name: row[name] for name in _OF_SIGNATURE if name not in read}
    own = {name: row[name] for name in ("process", "group", "group_rank", "store")}
    return Call(index=index, **own, stack=stack, signature=Signature(**as_they_are, **read))


def _args(text: str) -> dict[str, Any]:
    args: dict[str, Any] = orjson.loads(text)
    ranks = ranks_of(args.get("ranks"))
    if ranks is not None:
        args["ranks"] = list(ranks)
    return args


@dataclass(frozen=True, slots=True)
class Location:
    """Where a process stands or called from; ``op`` is null outside communication."""

    process: int
    file: str
    line: int
    function: str
    op: str | None
