"""Where launchers meet: the rendezvous of torchrun's agents, who came, and how many nodes suffice.

An agent's ``rendezvous`` is one composed operation per attempt. It asks the store again and again,
so what it does inside says nothing. While it lasts fewer nodes came than it needs; where the least
number is there, it only leaves the door open for more, which is no waiting for anybody.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from disttrace_viewer.evidence.evidence import Evidence
from disttrace_viewer.trace.error_texts import because_of_others
from disttrace_viewer.trace.operation import Op
from disttrace_viewer.trace.process import Process

UNNAMED = "none"
"""What torchrun calls a rendezvous without an id."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One agent's rendezvous: which rendezvous it means, and how many nodes must come."""

    op: Op
    place: str | None
    """Id of the store's place; None before the store is there."""
    run: str | None
    least: int | None
    most: int | None
    node_rank: int | None
    """Claimed beforehand (static rendezvous) or found."""
    open: bool
    """It waits, or gave up waiting, and did nothing of the kind since."""

    @property
    def process(self) -> int:
        """The agent."""
        return self.op.process


@dataclass(frozen=True)
class Agents:
    """Every rendezvous of every agent."""

    evidence: Evidence

    @cached_property
    def attempts(self) -> tuple[Attempt, ...]:
        """In the order in which they began."""
        agents = {p.index for p in self.evidence.trace.processes if p.is_agent}
        found = [
            op
            for op in self.evidence.sample.of_kind("composed")
            if op.process in agents and op.call.op == "rendezvous"
        ]
        found.sort(key=lambda op: (op.begin_ns, op.id))
        newest = {op.process: op for op in found}
        return tuple(
            _attempt(op, self._places.get(op.id), newest=newest[op.process] == op) for op in found
        )

    @cached_property
    def waiting(self) -> tuple[Attempt, ...]:
        """Those that miss somebody, or to whom nobody could be added and who yet go on waiting."""
        return tuple(
            a
            for a in self.attempts
            if a.open and (a.least is None or a.least == a.most or len(self.arrived(a)) < a.least)
        )

    def arrived(self, attempt: Attempt) -> tuple[Attempt, ...]:
        """Everybody who stands in the same rendezvous, itself included."""
        return tuple(a for a in self.attempts if a.open and _same(a, attempt))

    def agree(self, attempt: Attempt) -> bool:
        """Whether all who stand in the same rendezvous want the same number of nodes."""
        return len({(a.least, a.most) for a in self.arrived(attempt)}) == 1

    def elsewhere(self, attempt: Attempt) -> tuple[Attempt, ...]:
        """Those who wait in the same store under another id, or under the same id in another."""
        return tuple(
            a
            for a in self.attempts
            if a.open and not _same(a, attempt) and self._meant_to_meet(a, attempt)
        )

    def _meant_to_meet(self, one: Attempt, two: Attempt) -> bool:
        if one.place is not None and one.place == two.place:
            return one.run != two.run
        jobs = {self.evidence.trace.processes[a.process].job for a in (one, two)}
        return one.run not in (None, UNNAMED) and one.run == two.run and len(jobs) == 1

    def late(self, attempt: Attempt) -> tuple[Attempt, ...]:
        """The newest earlier rendezvous of each agent that was in one of these and is not here."""
        here = {a.process for a in self.arrived(attempt)}
        before = {a.process: a for a in self.attempts if not a.open and _same(a, attempt)}
        return tuple(a for process, a in sorted(before.items()) if process not in here)

    @cached_property
    def _places(self) -> Mapping[tuple[int, int | None], str]:
        """The place of the first store that is used inside an operation, by its id."""
        trace = self.evidence.trace
        found: dict[tuple[int, int | None], str] = {}
        for op in self.evidence.sample.ops:
            if (place := trace.place_of(op.call)) is not None:
                found.setdefault((op.process, op.parent), place)
        return found


def _attempt(op: Op, place: str | None, *, newest: bool) -> Attempt:
    args = op.call.args
    run = args.get("run_id")
    return Attempt(
        op=op,
        place=place,
        run=run if isinstance(run, str) else None,
        least=_number(args.get("min_nodes")),
        most=_number(args.get("max_nodes")),
        node_rank=_number(args.get("node_rank")),
        open=newest and (op.pending or because_of_others(op)),
    )


def _same(one: Attempt, two: Attempt) -> bool:
    if one.process == two.process:
        return one is two
    return one.place is not None and (one.place, one.run) == (two.place, two.run)


def _number(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def host_of(process: Process) -> str:
    """The node's name: as torchrun calls it where that tells more than the host's."""
    node = process.node
    return process.host if not node or node == process.host else f"{node} ({process.host})"
