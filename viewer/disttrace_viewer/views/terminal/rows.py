"""The rows of the merged order as values: what the painter knows, and all it knows."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Mark(Enum):
    """What is drawn on a lane."""

    DONE = "done"
    LAST = "last"
    """The one that arrived last."""
    FLYING = "flying"
    """Begun and not over."""
    MISSING = "missing"
    """Expected, and did not arrive."""
    FAILED = "failed"
    UNKNOWN = "unknown"
    """Begun; nobody saw it complete."""
    PART = "part"
    """A lane of several, of which some arrived."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """One process in an exchange."""

    process: int
    offset_ns: int
    """After the first one arrived."""


@dataclass(frozen=True, slots=True)
class Flight:
    """Processes that are in one operation at one line, and since when the first of them is."""

    what: str
    processes: tuple[int, ...]
    age_ns: int
    place: str | None
    ended: bool = False
    """The processes are not known to live: it was in flight when they ended."""
    silent: bool = False
    """Nobody can tell whether they ended: it was in flight when they were last heard of."""
    outside: bool = False
    """In no operation at all: ``what`` says so, and the age is since it stands at its place."""


@dataclass(frozen=True, slots=True)
class Failed:
    """Processes in which an operation failed in one way."""

    processes: tuple[int, ...]
    error: str
    place: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What all rows have; ``at_ns`` counts from the start of the job."""

    at_ns: int
    marks: tuple[tuple[int, Mark], ...] = ()
    """(lane, mark), by lane."""
    flights: tuple[Flight, ...] = ()
    failures: tuple[Failed, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveRow(Row):
    """One collective with all who arrived."""

    op: str
    seq: int
    group: str
    reduce_op: str | None
    tensors: str
    root: str | None
    arrivals: tuple[Arrival, ...]
    """In the order of arrival."""
    missing: tuple[str, ...]
    took_ns: int | None
    """From the first begin to the last end; None while somebody is in it."""
    differs: str | None
    """What not all of those who arrived have in common: operations, or their arguments."""
    within: str | None
    """The composed operation that issued it."""
    place: str | None
    places: tuple[tuple[str, tuple[int, ...]], ...]
    """Where its members called it from, each with its processes; empty where all did alike."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageRow(Row):
    """One message, perhaps with one end only."""

    source: str
    destination: str
    arrow: tuple[int, int] | None
    """Lanes from and to; None where one of them has no lane."""
    seq: int
    group: str
    bytes: int | None
    tag: int | None
    missing: str | None
    """``send`` or ``recv``: the end that nobody began."""
    waiter: str | None
    waited_ns: int
    took_ns: int | None
    within: str | None
    place: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalRow(Row):
    """What processes did by themselves at one line: the n-th time of each."""

    op: str
    what: str
    """Key, address, arguments: what tells it from others."""
    bytes: int | None
    processes: tuple[int, ...]
    took_ns: int | None
    place: str | None


@dataclass(frozen=True, slots=True)
class Folded:
    """What is folded of rows of one look."""

    what: str
    """``all_reduce``, ``messages``, ``store.set``."""
    times: int
    median_ns: int
    max_ns: int
    """From the first begin to the last end."""
    last: tuple[tuple[int, int], ...]
    """(process, how often it arrived last), most first; empty where nobody waits for the last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoldRow(Row):
    """The rows before it came again, all alike: from the same lines, with the same arguments."""

    rows: int
    times: int
    until_ns: int
    each_ns: int
    """From one to the next, on average."""
    folded: tuple[Folded, ...]
    """By look, what took longest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GapRow(Row):
    """Rows that are not shown."""

    rows: int
    until_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EndRow(Row):
    """Processes that ended badly at about one time and in one way."""

    what: str
    processes: tuple[int, ...]
    place: str | None
