"""A finding: what is wrong, as a value that views print and nothing else changes."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from pkgutil import get_data
from typing import Any

import orjson

from disttrace_viewer.evidence.wait import Deadline, RankActivity, Wait
from disttrace_viewer.trace.model import CodeLocation, Stream
from disttrace_viewer.trace.process import NonFinite
from disttrace_viewer.trace.values import dataclass, field, replace

ERROR, WARNING, NOTE = SEVERITIES = "error", "warning", "note"
"""In the order in which they are reported."""
CERTAIN, LIKELY = "certain", "likely"

_SCHEMA = orjson.loads(get_data("disttrace_viewer", "diagnosis/diagnose.schema.json") or b"")
KINDS: tuple[str, ...] = tuple(_SCHEMA["$defs"]["finding"]["properties"]["kind"]["enum"])
"""Every kind of finding, as the schema of reports lists them."""


@dataclass(frozen=True, slots=True)
class Scope:
    """What a finding explains: waits and ends of others that follow from it.

    ``exchanges`` names single exchanges; ``stream`` a group's collectives, with the sequence number
    from which on nothing in them is trusted; ``roots`` are the processes and
    ``absent`` the global ranks whose absence others wait for; ``members`` are processes whose
    errors and ends it explains as well.
    """

    exchanges: frozenset[Hashable] = frozenset()
    stream: tuple[Stream, int] | None = None
    roots: frozenset[int] = frozenset()
    absent: frozenset[tuple[int | None, int]] = frozenset()
    members: frozenset[int] = frozenset()

    @classmethod
    def of(
        cls,
        waits: Iterable[Wait] = (),
        *,
        roots: Iterable[int] = (),
        absent: Iterable[int] = (),
        group: int | None = None,
        members: Iterable[int] = (),
    ) -> Scope:
        """All of the exchanges of ``waits``; ``absent`` are ranks, of ``group`` or of the job."""
        return cls(
            exchanges=frozenset(wait.exchange for wait in waits),
            roots=frozenset(roots),
            absent=frozenset((group, rank) for rank in absent),
            members=frozenset(members),
        )


@dataclass(frozen=True, slots=True)
class RuleFinding:
    """One thing that is wrong. Processes are indices into ``Trace.processes``."""

    kind: str
    summary: str
    severity: str = ERROR
    because: tuple[str, ...] = ()
    """Why it is likely only: what else may have left the same records; none: it is certain."""
    hint: str | None = None
    culprits: tuple[int, ...] = ()
    absent_ranks: tuple[int, ...] = ()
    """Global ranks that are to blame and of which no process was seen."""
    waiting: tuple[int, ...] = ()
    device: bool = False
    """The devices of the culprits, or their streams, do not get on."""
    op: str | None = None
    group: str | None = None
    seq: int | None = None
    key: str | None = None
    cycle: tuple[tuple[int, str, int], ...] | None = None
    locations: tuple[CodeLocation, ...] = ()
    consequences: tuple[str, ...] = ()
    at_ns: int = 0
    """When it began, for the order of findings of one kind."""
    scope: Scope = field(default_factory=Scope)
    parameters: tuple[tuple[int, tuple[str, ...]], ...] = ()
    """By process, the names of the model's parameters that it is about."""
    callers: tuple[tuple[int, str], ...] = ()
    """By process, the caller's line that tells its call from the others', made by the same line."""
    nonfinite: tuple[int, NonFinite] | None = None
    """The process whose input was the first that was not finite, and where it was."""
    settles: tuple[str, ...] = ()
    """Evidence that is missing and would make it certain."""
    said_at: float | None = None
    """When the job reported it (unix seconds); what it knew then may be more than journals hold."""
    values: Mapping[str, Any] | None = None
    """As it was reported (``diagnose --json``), where less is known now."""
    activity: tuple[RankActivity, ...] = ()
    """What the missing do."""
    deadline: Deadline | None = None
    """When a time limit ends the waits."""

    @property
    def certainty(self) -> str:
        """``certain``, or ``likely`` where there is a reason to doubt it."""
        return LIKELY if self.because else CERTAIN

    def doubted(self, *reasons: str, **changes: Any) -> RuleFinding:
        """The finding with further reasons, and other ``changes``."""
        because = tuple(dict.fromkeys((*self.because, *reasons)))
        return replace(self, because=because, **changes)


def why(*reasons: tuple[object, str]) -> tuple[str, ...]:
    """The texts of the reasons that hold, each once."""
    return tuple(dict.fromkeys(text for holds, text in reasons if holds))
