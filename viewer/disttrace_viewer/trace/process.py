"""A traced process and what is known of it, as values. Times are unix nanoseconds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from disttrace_viewer.trace.values import dataclass


class Frame(NamedTuple):
    """One Python frame of a call site."""

    file: str
    line: int
    function: str


Stack = tuple[Frame, ...]
"""Frames, innermost first, starting at the user's frame."""


class Problem(NamedTuple):
    """Something about the input that did not read as it should; ``sentence`` has it in full."""

    path: str
    kind: str
    """A short stable word for the kind of damage (``torn``, ``noise``, ``newer format``, ...)."""
    sentence: str
    """Which file, what is wrong, what was still used, what to do."""


class Exit(NamedTuple):
    """The last word of a process about itself."""

    how: str
    code: int | None
    t_ns: int
    stack: Stack = ()
    """Where the program requested it (``sys.exit``, ``os._exit``)."""
    causes: tuple[str, ...] = ()
    """``Type: first line`` of what was being handled then, nearest first."""


class Failure(NamedTuple):
    """An exception that was not caught, or that a thread handles."""

    t_ns: int
    type: str
    text: str
    stack: Stack
    thread: int
    causes: tuple[str, ...] = ()
    """``Type: first line`` of the exceptions that it was raised from, nearest first."""
    lines: tuple[str, ...] = ()
    """Lines of its text behind the first one."""
    parameters: tuple[str, ...] = ()
    """Names of those that an exception of DDP's is about."""

    @property
    def chain(self) -> tuple[str, ...]:
        """Itself as ``Type: first line``, then its causes."""
        return (f"{self.type}: {self.text}" if self.text else self.type, *self.causes)


class StackSample(NamedTuple):
    """Where a thread was when nothing had begun or ended for a while."""

    t_ns: int
    stack: Stack
    first_ns: int = 0
    """Of the latest one, when that thread was first seen with this very stack."""


class Worker(NamedTuple):
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


class Sighting(NamedTuple):
    """What the companion of a process's host saw of it, and wrote down for later."""

    t_ns: int
    state: str
    """``gone`` or ``stopped`` (``disttrace.journal.format``)."""
    code: int | None
    """Exit code of one that was a zombie then; -N for signal N."""
    others: int = 0
    """So many other processes of the job lived on that host then."""


class Trouble(NamedTuple):
    """What was read of a process's host at a stall, without the program's help."""

    t_ns: int
    """When that came about, or was read."""
    by: str
    """``kernel log``, ``nvidia-smi`` or ``NCCL RAS``."""
    where: str
    """``host``, ``device`` or ``link`` (``disttrace.journal.format``)."""
    name: str | None
    """Of the device, interface or node, as they call it."""
    code: int | None
    """Number of an Xid."""
    mine: bool = False
    """Whether it names this very process; else it is of the whole host."""
    text: str | None = None
    """Its own words; None where they were not sent to other hosts."""


class Usage(NamedTuple):
    """What a process and its children used while others waited for it, between two looks."""

    t_ns: int
    over_ns: int
    """So long before that the first look was."""
    cpu_ns: int
    busy: bool = False
    """Whether a thread of its own computed, or waited for a processor."""
    beside: bool = False
    """Whether one did that is not its main thread."""
    others: bool = False
    """Whether a process that it started did."""
    failed: bool = False
    """Whether one that it started has ended badly, and it has not asked how."""
    read: int | None = None
    """Bytes, whatever the file; None where that is hidden."""
    written: int | None = None
    received: int = 0
    """Bytes over the network, but for those of stores."""
    faults: int = 0
    """Pages that it has got."""


AGENT = "agent"
"""The role of a launcher: torchrun's agent."""
JOURNAL = "journal"
DUMPED = "flight recorder"
ATTACHED = "flight recorder and py-spy"
"""Of ranks that were looked at while they ran, and whose recorders were read."""


class Digest(NamedTuple):
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


class NonFinite(NamedTuple):
    """The first input in a group, of those looked at, that was not finite before it was reduced."""

    t_ns: int
    group: str
    """The group's id."""
    op: str | None
    seq: int | None
    """The collective's number in the group; None where torch found it outside of any."""
    stack: Stack
    parameters: tuple[str, ...] = ()
    """Of a model of DDP those whose gradients were not finite."""


class Unreduced(NamedTuple):
    """A model of DDP that reduced nothing, or had no gradients of ``parameters`` in a pass."""

    t_ns: int
    over_ns: int
    """Since it was made."""
    group: str
    bytes: int
    """Of its gradients."""
    changes: int
    """How often a parameter changed in place; one step of an optimizer may do so a few times. With
    ``parameters`` the number of the backward pass that was to reduce them."""
    stack: Stack
    bucket: int = 0
    """The one that waits for the gradients of ``parameters``."""
    parameters: tuple[str, ...] = ()
    settled: bool = False
    """Whether another model was used next."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """One traced process; ``index`` is its place in ``Trace.processes``."""

    id: str
    index: int
    job: str
    job_source: str | None
    """What named it: a scheduler's variable and the like."""
    role: str
    """``agent``, ``worker``, ``child``, ``main``, or ``unknown`` without a definition."""
    rank: int | None
    local_rank: int | None
    world_size: int | None
    host: str
    boot_id: str | None
    pid: int | None
    parent: str | None
    attempt: int | None
    argv: tuple[str, ...]
    cwd: str | None
    start_ns: int
    last_ns: int
    """Newest sign of life: of any record that bears a time, heartbeats included."""
    heartbeat_ns: int | None = None
    exit: Exit | None
    failures: tuple[Failure, ...]
    threads: Mapping[int, str]
    """Names by the journal's numbers (0 opened the journal)."""
    latest_samples: Mapping[int, StackSample]
    """The latest sample per thread number."""
    samples: tuple[StackSample, ...] = ()
    """Every stack sample of the main thread, by time."""
    notes: tuple[str, ...]
    """What of disttrace itself failed in it, or was left out."""
    dropped: bool
    """Whether old segments were given up to stay within ``DISTTRACE_MAX_MB``."""
    workers: tuple[Worker, ...]
    reported: Worker | None = None
    """How it ended, by the word of the traced process that launched it; null: not a word."""
    node: str | None
    """What torchrun's rendezvous calls the agent's node."""
    versions: Mapping[str, Any]
    """``torch``, ``backends``, ``not_captured``, ``parts`` as the journal has them."""
    env: Mapping[str, str]
    """The rank variables present at start: inherited by children, so claims and no facts."""
    settings: Mapping[str, Any]
    damage: tuple[str, ...] = ()
    """Sentences of the problems in this process's own files."""
    losses: tuple[str, ...] = ()
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
    """Clock ticks from boot to its start: with boot, namespace and pid they name one process."""
    source: str = JOURNAL
    """What it was read from: ``journal``, or the kind of another tool's evidence."""
    lacks: frozenset[str] = frozenset()
    """What that evidence does not hold (``docs/journal.md``); of a journal nothing is named."""
    reports: tuple[Mapping[str, Any], ...] = ()
    """What that evidence tells of others, or of the whole job, by lines of its own."""
    sightings: tuple[Sighting, ...] = ()
    """What was seen of it from outside, by time."""
    troubles: tuple[Trouble, ...] = ()
    """Of its host; in the journal of one of its processes each."""
    usage: tuple[Usage, ...] = ()
    """While others waited for it, by time."""
    handling: tuple[Failure, ...] = ()
    """What its threads handled when they were last looked at, ``t_ns`` when that was first seen."""
    digests: tuple[Digest, ...] = ()
    nonfinite: tuple[NonFinite, ...] = ()
    unreduced: tuple[Unreduced, ...] = ()
    """Of what it had that others have to have equal, by time."""

    @property
    def is_agent(self) -> bool:
        return self.role == AGENT

    @property
    def is_rank(self) -> bool:
        """Whether it is one of the job's ranks: a number that a launcher bears is not its own."""
        return self.rank is not None and not self.is_agent

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

    offset_ns: int
    error_ns: int
    drift: float = 0.0
    """Seconds gained per second against the reference clock, counted from ``origin_ns``."""
    origin_ns: int = 0
    """Monotonic reading at which ``offset_ns`` holds exactly."""
    moved_ns: int = 0
    """The part of ``offset_ns`` by which exchanges showed the wall clock to be wrong."""
