"""The rows of the merged order as values: marks on lanes, and styled words beside them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from rich.text import Text


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """An exchange, a step, a repetition, a gap or an end of processes."""

    at_ns: int | None
    """From the start of the job on; None: of a repetition, into which nothing is put."""
    text: Text
    below: tuple[Text, ...] = ()
    """Further lines."""
    marks: tuple[tuple[int, Mark], ...] = ()
    """(lane, mark), by lane."""
    joined: bool = False
    """A line joins the marks."""
    arrow: tuple[int, int] | None = None
    """From lane to lane."""
    place: str | None = None
    """Where it was called from, for those who ask."""
    between: bool = False
    """It stands between rows: a repetition or a gap."""
