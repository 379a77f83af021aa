"""A wait, as a value: an operation, and those that it waits for; which of these import."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from disttrace_viewer.analysis.process_ends import ALIVE
from disttrace_viewer.evidence.evidence import Evidence
from disttrace_viewer.evidence.rendezvous import LATE_NS
from disttrace_viewer.trace.model import Stream
from disttrace_viewer.trace.operation import Op, because_of_others, is_closed

COLLECTIVE, MESSAGE, KEY, RENDEZVOUS, OTHER = "collective", "message", "key", "rendezvous", "other"
SERVER = "server"
"""A store operation that waits for none's act, while the process that serves the store is still.
"""
NODES = "nodes"
"""An agent's rendezvous, which waits for other agents."""


@dataclass(frozen=True, slots=True)
class Wait:
    """A blocking operation and those it waits for.

    ``targets`` are processes, ``absent`` global ranks without a process (group ranks where the
    group knows no global ones). ``any_of``: one of them would do. ``unknown``: who must act is not
    known; a key's target is then only who is expected to set it. No target, nothing absent and not
    unknown: everybody is there.
    """

    op: Op
    kind: str
    exchange: Hashable
    targets: tuple[int, ...] = ()
    absent: tuple[int, ...] = ()
    any_of: bool = False
    unknown: bool = False
    arrived: tuple[int, ...] = ()
    """Processes that have begun the same exchange."""
    late_ns: int | None = None
    """It began so long after the others had given the exchange up: it is no wait for them."""
    lateness: tuple[tuple[int, int], ...] = ()
    """Those among the targets that arrived after the exchange was given up, and by how much."""
    side: bool = False
    """Of a thread beside the one that does the process's exchanges: it holds up no other."""
    behind: Op | None = None
    """The wait of another thread that has the connection to the store which this one needs."""
    polled: bool = False
    """No open operation: a store is requested the key again and again."""

    def __hash__(self) -> int:
        # An operation is in one wait only; members and targets may be thousands.
        return hash(self.op)

    @property
    def process(self) -> int:
        """Who waits."""
        return self.op.process

    @property
    def stream(self) -> Stream | None:
        """What numbers it, if it is in a collective that has a number."""
        return self.op.call.stream if self.kind == COLLECTIVE else None

    @property
    def holds(self) -> bool:
        """Whether it blocks its process: not on a side thread, nor after the others gave it up."""
        return not self.side and self.late_ns is None

    @property
    def complete(self) -> bool:
        """Everybody is there, and yet it is not over."""
        return not (self.targets or self.absent or self.unknown)


SOON_NS = 100_000_000
"""Who begins so much after a time limit by the same clock was not there while it ran."""


def given_up_ns(ops: Iterable[Op]) -> int | None:
    """When an exchange was given up: its first operation that ended because of others did.

    Who begins long after that cannot have been waited for any more.
    """
    first = given_up(ops)
    return None if first is None else first.end_ns


def given_up(ops: Iterable[Op]) -> Op | None:
    """The operation by whose end an exchange was given up."""
    ended = (op for op in ops if op.end_ns is not None and because_of_others(op))
    return min(ended, key=lambda op: op.end_ns or 0, default=None)


def late_by_ns(evidence: Evidence, over: Op, op: Op) -> int:
    """By how much an operation began after another one of its exchange had been given up; 0 where
    that is too little to report anything: two survivors of a third may fail one after the other,
    and clocks may be apart. A time limit on one clock is exact.
    """
    by_ns = op.begin_ns - (over.end_ns or op.begin_ns)
    clocks = {evidence.trace.processes[one.process].clock for one in (over, op)}
    exact = len(clocks) == 1 and not is_closed(over.error)
    return by_ns if by_ns > (SOON_NS if exact else LATE_NS) else 0


LIMIT_NS, LIMITS = 60_000_000_000, 6
"""A stall begins so late then, and at most after so many times the usual limit."""
_MOVES_NS = 10_000_000_000
"""An import that stands at one line for longer hangs."""
_IMPORTS = "<frozen importlib"


def import_limit_ns(evidence: Evidence) -> int:
    """How long those who import are waited for."""
    return max(evidence.stall_ns, min(LIMIT_NS, LIMITS * evidence.stall_ns))


def still_imports(evidence: Evidence, wait: Wait) -> bool:
    """Whether all who are missing in a wait import, and it has not lasted too long for that."""
    return (
        bool(wait.targets)
        and not wait.absent
        and evidence.age_ns(wait.op) < import_limit_ns(evidence)
        and all(_imports(evidence, process) for process in wait.targets)
    )


def _imports(evidence: Evidence, process: int) -> bool:
    sample, end = evidence.samples.get(process), evidence.ends[process]
    return (
        sample is not None
        and end.how == ALIVE
        and end.held is None
        and evidence.cut_ns - sample.t_ns < _MOVES_NS
        and any(frame.file.startswith(_IMPORTS) for frame in sample.stack)
    )


def cycles(edges: Mapping[int, Sequence[int]]) -> list[tuple[int, ...]]:
    """Strongly connected sets (Tarjan), sorted; one that reaches another comes before it."""
    index: dict[int, int] = {}
    low: dict[int, int] = {}
    stack: list[int] = []
    found: list[tuple[int, tuple[int, ...]]] = []
    depth: dict[int, int] = {}
    """Of what is done: how many cycles lie one behind the other from there."""
    for start in sorted(edges):
        if start in index:
            continue
        work: list[tuple[int, int]] = [(start, 0)]
        while work:
            node, at = work.pop()
            if at == 0:
                index[node] = low[node] = len(index)
                stack.append(node)
            targets = [t for t in edges.get(node, ()) if t in edges]
            for position in range(at, len(targets)):
                target = targets[position]
                if target not in index:
                    work += [(node, position + 1), (target, 0)]
                    break
                if target not in depth:
                    low[node] = min(low[node], index[target])
            else:
                if low[node] == index[node]:
                    part = []
                    while stack and index[stack[-1]] >= index[node]:
                        part.append(stack.pop())
                    behind = (depth.get(t, 0) for p in part for t in edges.get(p, ()))
                    deep = max(behind, default=0) + (len(part) > 1)
                    depth |= dict.fromkeys(part, deep)
                    if len(part) > 1:
                        found.append((deep, tuple(sorted(part))))
                if work:
                    above = work[-1][0]
                    low[above] = min(low[above], low[node])
    return [part for _, part in sorted(found, key=lambda one: (-one[0], one[1]))]


def ring(edges: Mapping[int, Iterable[int]], members: Sequence[int], least: int = 2) -> list[int]:
    """A shortest cycle within members, from that of its nodes that comes first among them on.

    ``least``: there can be none of fewer nodes.
    """
    left = set(members)
    inner = {p: left.intersection(edges.get(p, ())) for p in members}
    above: dict[int, list[int]] = {}
    for process, targets in inner.items():
        for target in targets:
            above.setdefault(target, []).append(process)
    best: list[int] = []
    for start in members:
        found = _around(inner, start) if start in left else []
        if found and (not best or len(found) < len(best)):
            best = found
        if len(best) == least:
            break
        # No cycle that is left passes here, nor those that wait for none then.
        over = [start] if start in left else []
        while over:
            gone = over.pop()
            left.discard(gone)
            inner[gone] = set()
            for process in above.get(gone, ()):
                inner[process].discard(gone)
                if process in left and not inner[process]:
                    over.append(process)
    return best


def _around(edges: Mapping[int, Iterable[int]], start: int) -> list[int]:
    """A shortest way from a node back to it; empty where there is none."""
    before = {start: start}
    reached = [start]
    for process in reached:
        for target in sorted(edges[process]):
            if target == start:
                way = [process]
                while way[-1] != start:
                    way.append(before[way[-1]])
                return way[::-1]
            if target not in before:
                before[target] = process
                reached.append(target)
    return []
