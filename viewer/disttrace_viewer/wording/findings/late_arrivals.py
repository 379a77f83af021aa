"""What held those up that arrived after the others had given up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from disttrace_viewer.trace.model import Location, Trace
from disttrace_viewer.trace.operation import Op
from disttrace_viewer.wording import sentences

HINT = "Find what held it up before that call, or allow more time: timeout= of the group."


@dataclass(frozen=True, slots=True)
class Held:
    """A late process was in ``op`` when it was given up, and came on once ``by`` had come there.

    Without ``by`` nobody knows what it waited for; without ``op`` it was in no communication.
    """

    op: Op | None
    by: tuple[Op, ...]
    within: str | None
    """The operation that the program called, where ``op`` is a part of it."""
    at: Location | None = None
    """Where it stood, without ``op``."""
    after_ns: int | None = None
    """It was seen there only so long after the others had given up."""


def words(trace: Trace, held: Mapping[int, Held]) -> str:
    """What held these processes up, to follow a sentence: empty if nothing did."""
    parts = []
    for process, one in sorted(held.items()):
        if one.op is None:
            if one.at is not None:
                seen = f"was last seen at {sentences.is_at(one.at)} until then"
                if one.after_ns is not None:
                    later = sentences.span(one.after_ns)
                    seen = f"was at {sentences.is_at(one.at)} {later} after that"
                parts.append(f"; {trace.processes[process].label} {seen}")
            continue
        by = sentences.processes(trace, sorted({op.process for op in one.by}))
        waited = f"waited for {by}" if one.by else "was"
        name = sentences.operation(trace, one.op, one.within)
        parts.append(f"; {trace.processes[process].label} {waited} in {name} until then")
    return "".join(parts)
