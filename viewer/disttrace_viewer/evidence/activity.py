"""Whether a rank that others wait for is at work, stands still or spins, by what is on record."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from disttrace.journal.code_files import BUILT_IN
from disttrace_viewer.analysis.operation import innermost
from disttrace_viewer.evidence.evidence import Evidence
from disttrace_viewer.trace.process import Frame, StackSample, Usage

MOVES, STANDS, SPINS, UNKNOWN = "moves", "stands", "spins", "unknown"
MOVED, RECEIVED, FAULTED = 64 << 10, 1 << 10, 1_000
"""Bytes read and written, bytes received, and pages faulted in, in a second, of one at work."""
CORES = 1.5
"""Who computes on more of them than this does more than turn in a loop."""
_SOONEST_NS, _LATEST_NS, _SLACK_NS = 2e9, 10e9, 1.5e9
"""Between two looks of the recorder's at a stack: half of the silence, and between these."""


@dataclass(frozen=True, slots=True)
class Activity:
    """What a process did while others waited for it."""

    process: int
    state: str = UNKNOWN
    usage: Usage | None = None
    lines: tuple[Frame, ...] = ()
    """Lines of the program at which it was seen, the newest first."""

    @property
    def cpu(self) -> float | None:
        """The share of a core that it used, with the processes that it started."""
        return None if self.usage is None else self.usage.cpu_ns / self.usage.over_ns


def activity(evidence: Evidence, process: int, since_ns: int, until_ns: int) -> Activity:
    """What a process did while others waited for it, from ``since_ns`` until ``until_ns``."""
    one = evidence.trace.processes[process]
    usage = next((u for u in reversed(one.usage) if since_ns < u.t_ns <= until_ns), None)
    at_ns = until_ns if usage is None else usage.t_ns
    active = evidence.sample.active.get((process, 0), 0)
    begun_ns = max(since_ns, active) if active <= at_ns else since_ns
    seen = [s for s in one.samples if begun_ns < s.t_ns <= at_ns + _SLACK_NS]
    samples = seen or [s for s in one.samples if s.t_ns <= at_ns][-1:]
    frames = [f for s in reversed(samples) if (f := innermost(s.stack)) is not None]
    lines = tuple(dict.fromkeys(frames))[:MOST_LINES]
    if usage is None:
        return Activity(process, lines=lines)
    return Activity(process, _state(usage, _moved(seen, at_ns, begun_ns)), usage, lines)


MOST_LINES = 5


def _moved(seen: list[StackSample], at_ns: int, begun_ns: int) -> bool:
    """Whether the main thread was lately seen at another place than at the look before: places are
    written down when they have changed, and the first of a silence in any case.
    """
    recent_ns = min(max((at_ns - begun_ns) / 2, _SOONEST_NS), _LATEST_NS) + _SLACK_NS
    return any(
        at_ns - s.t_ns <= recent_ns and _lines(s) != _lines(before)
        for before, s in itertools.pairwise(seen)
    )


def _lines(sample: StackSample) -> list[tuple[str, int]]:
    """Without what the innermost line calls in C, which not every look can tell."""
    return [(one.file, one.line) for one in sample.stack if one.file != BUILT_IN]


def _state(usage: Usage, moved: bool) -> str:
    seconds = usage.over_ns / 1e9
    transfers = (usage.received or 0) / seconds >= RECEIVED
    transfers |= ((usage.read or 0) + (usage.written or 0)) / seconds >= MOVED
    if usage.busy:
        works = usage.faults / seconds >= FAULTED or usage.cpu_ns / usage.over_ns >= CORES
        return MOVES if moved or transfers or works or usage.others else SPINS
    if usage.others or transfers or moved:
        return MOVES
    return UNKNOWN if usage.read is None else STANDS
