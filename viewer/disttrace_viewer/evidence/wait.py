"""A wait, as a value: an operation, and those that it waits for; when a time limit ends it and what
happens then; and what the ranks that are waited for do meanwhile.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence

from disttrace.journal.code_files import BUILT_IN, LOOP, programs_frame
from disttrace.journal.format import CONSTRUCTOR, STORE
from disttrace_viewer.analysis.process_ends import ALIVE
from disttrace_viewer.analysis.sample import STAND_IN, STORES, innermost
from disttrace_viewer.evidence.evidence import Evidence
from disttrace_viewer.trace.model import Stream
from disttrace_viewer.trace.operation import GROUPED, Op, because_of_others, is_closed
from disttrace_viewer.trace.process import Frame, StackSample, Usage
from disttrace_viewer.trace.values import dataclass

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


Waits = Sequence[Wait]
LATE_NS = 1_000_000_000
"""Who begins so long after the first one's time-out was not waited for any more."""
SOON_NS = 100_000_000
"""Who begins so much after a time limit by the same clock was not there while it ran."""


def given_up_ns(ops: Iterable[Op]) -> int | None:
    """When an exchange was given up: its first operation that ended because of others did."""
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


def lateness(evidence: Evidence, inside: Collection[Op]) -> dict[int, int]:
    """By process, how long after an exchange was given up, or was over, those came who met none."""
    first, found = given_up(inside), {}
    for op in inside:
        by_ns = _joined_late_ns(evidence, op, inside)
        if not by_ns and first is not None and op.number != STAND_IN:
            by_ns = late_by_ns(evidence, first, op)
        if by_ns:
            found[op.process] = by_ns
    return found


def _joined_late_ns(evidence: Evidence, op: Op, inside: Iterable[Op]) -> int:
    """By how much a process began after another was through with what it calls: it joined under the
    rank of one that was in it (a child that inherits RANK, a program that executes itself anew),
    and none comes there. Else 0.
    """
    if op.end_ns is not None or op.call.op in STORES:
        return 0
    processes = evidence.trace.processes
    mine = processes[op.process]
    over = [one for one in inside if one.end_ns is not None and one.error is None]
    of = [(processes[one.process], one.end_ns or 0) for one in over]
    same = [ns for p, ns in of if (p.rank, p.clock) == (mine.rank, mine.clock)]  # it needs no slack
    by_ns = mine.start_ns - min(same or [ns for _, ns in of], default=sys.maxsize)
    return by_ns if by_ns > (0 if same else LATE_NS) else 0


LIMIT_NS, LIMITS = 60_000_000_000, 6
"""A stall begins so late then, and at most after so many times the usual limit."""
_MOVES_NS = 10_000_000_000
"""An import that stands at one line for longer hangs."""


def import_limit_ns(evidence: Evidence) -> int:
    """How long importing processes are waited for."""
    return max(evidence.stall_ns, min(LIMIT_NS, LIMITS * evidence.stall_ns))


def still_imports(evidence: Evidence, wait: Wait) -> bool:
    """Whether all missing processes of a wait import, and it has not lasted too long for that."""
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
        and any(frame.file.startswith("<frozen importlib") for frame in sample.stack)
    )


def cycles(edges: Mapping[int, Sequence[int]]) -> list[tuple[int, ...]]:
    """Strongly connected sets (Tarjan); one that reaches another comes before it."""
    index: dict[int, int] = {}
    low: dict[int, int] = {}
    stack: list[int] = []
    done: set[int] = set()
    found: list[tuple[int, ...]] = []
    for start in sorted(edges, reverse=True):
        work = [] if start in index else [(start, 0)]
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
                if target not in done:
                    low[node] = min(low[node], index[target])
            else:
                if low[node] == index[node]:
                    part = []
                    while stack and index[stack[-1]] >= index[node]:
                        part.append(stack.pop())
                    done.update(part)
                    found += [tuple(sorted(part))] if len(part) > 1 else []
                if work:
                    above = work[-1][0]
                    low[above] = min(low[above], low[node])
    return found[::-1]


_STARTS = 64


def ring(edges: Mapping[int, Iterable[int]], members: Sequence[int]) -> list[int]:
    """A shortest cycle within members from one of the first of them on; of several the first."""
    place = {p: at for at, p in enumerate(members)}
    inner = {p: sorted(place.keys() & {*edges.get(p, ())}, key=place.__getitem__) for p in members}
    ways = [way for start in members[:_STARTS] if (way := _around(inner, start))]
    return min(ways, key=len, default=[])


def _around(edges: Mapping[int, Sequence[int]], start: int) -> list[int]:
    """A shortest way from a node back to it; empty where there is none."""
    before = {start: start}
    reached = [start]
    for process in reached:
        for target in edges[process]:
            if target == start:
                way = [process]
                while way[-1] != start:
                    way.append(before[way[-1]])
                return way[::-1]
            if target not in before:
                before[target] = process
                reached.append(target)
    return []


GROUP, CALL, WATCHDOG, LAUNCHER = "group", "call", "watchdog", "launcher"
STORE_NS = 300_000_000_000
"""Of a store that was given none (``Store::kDefaultTimeout``)."""
HEARTBEAT_S = 480
"""torch's default of ``TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC``."""
_NCCL = {
    0: "nothing ends it, since TORCH_NCCL_ASYNC_ERROR_HANDLING is 0",
    1: "NCCL's watchdog ends the process, since TORCH_NCCL_ASYNC_ERROR_HANDLING is 1",
    2: "NCCL's watchdog aborts the communicator, since TORCH_NCCL_ASYNC_ERROR_HANDLING is 2",
    3: "NCCL's watchdog ends the process (TORCH_NCCL_ASYNC_ERROR_HANDLING is 3, the default)",
}
"""``ErrorHandlingMode`` of ``ProcessGroupNCCL.hpp``."""


@dataclass(frozen=True, slots=True)
class Deadline:
    """``whose`` limit it is: a group's, a call's, a watchdog's or a launcher's."""

    at_s: float
    """Unix time."""
    limit_s: float
    whose: str
    what: str
    """Whose, in words: ``gloo's limit``."""
    then: str


def deadline(evidence: Evidence, ops: Iterable[Op]) -> Deadline | None:
    """The first limit that strikes of those on some waits; None where none is known."""
    found = [one for op in ops if (one := _of(evidence, op)) is not None]
    return min(found, key=lambda one: one.at_s, default=None)


def limit(evidence: Evidence, op: Op) -> tuple[float, str, str] | None:
    """After which torch gives an operation up (ns), whose limit that is, and in words."""
    trace, call = evidence.trace, op.call
    given = call.args.get("timeout")
    if isinstance(given, (int, float)) and not isinstance(given, bool) and given > 0:
        return given * 1e9, CALL, f"the timeout of {call.op}"
    if call.kind == STORE or call.op == "TCPStore":
        of = None if call.store is None else trace.stores[call.store]
        base = of if of is None or of.base is None else trace.stores[of.base]
        set_ns = None if base is None else base.timeout_ns
        return set_ns or STORE_NS, CALL, "the store's limit"
    if call.kind in GROUPED and call.group is not None:
        set_ns = trace.groups[call.group].timeout_ns
        return None if set_ns is None else (set_ns, GROUP, f"{call.backend or 'the group'}'s limit")
    return None


def _of(evidence: Evidence, op: Op) -> Deadline | None:
    found, call = limit(evidence, op), op.call
    if found is None:
        return None
    limit_ns, whose, what = found
    process = evidence.trace.processes[op.process]
    if process.is_agent:
        whose, what, then = LAUNCHER, "torchrun's limit", "torchrun gives the rendezvous up"
    elif call.kind in GROUPED and call.backend == "nccl":
        then = _of_nccl(process.env, limit_ns / 1e9)
    elif call.kind == STORE or call.kind == CONSTRUCTOR:
        then = f"{call.op} raises in the ranks that wait"
    else:
        then = f"{call.backend or call.op} raises in the ranks that wait"
    at_s = (op.begin_ns + limit_ns) / 1e9 + (call.op == "TCPStore")  # it counts whole seconds
    return Deadline(at_s, limit_ns / 1e9, whose, what, then)


def _of_nccl(env: Mapping[str, str], limit_s: float) -> str:
    def number(name: str, default: int) -> int:
        text = env.get(name, "")
        return int(text) if text.isdecimal() else default

    if number("TORCH_NCCL_BLOCKING_WAIT", 0):
        return "the wait raises, since TORCH_NCCL_BLOCKING_WAIT is set"
    mode = number("TORCH_NCCL_ASYNC_ERROR_HANDLING", 3)
    then = _NCCL.get(mode, _NCCL[3])
    beat_s = number("TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC", HEARTBEAT_S)
    if number("TORCH_NCCL_ENABLE_MONITORING", 1) and beat_s < limit_s:
        then += (
            f"; where the watchdog itself is stuck, the heartbeat monitor ends the process after"
            f" {beat_s} s (TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC)"
        )
    return then


MOVES, STANDS, SPINS, UNKNOWN = "moves", "stands", "spins", "unknown"
READ, WRITTEN, RECEIVED, FAULTED = 64 << 10, 16 << 10, 1 << 10, 1_000
"""In a second, of one at work: bytes read, written and received, and pages faulted in. Who looks
for a change reads as well, and writes nothing."""
CORES = 1.5
"""Who computes on more of them than this does more than turn in a loop."""
FROZEN, FROZEN_NS = 0.6, 60e9
"""The part of the wait without any Python, and how long, after which one that computes makes no
long call any more, such as a sort: it keeps the GIL for ever."""
_SOONEST_NS, _LATEST_NS, _SLACK_NS = 2e9, 10e9, 1.5e9
"""Between two looks of the recorder's at a stack: half of the silence, and between these."""


@dataclass(frozen=True, slots=True)
class RankActivity:
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


def activity(
    evidence: Evidence, process: int, since_ns: int, until_ns: int, frozen_ns: int
) -> RankActivity:
    """What a process did while others waited; for ``frozen_ns`` only one of its threads ran."""
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
        return RankActivity(process, lines=lines)
    stood = _lately(seen, at_ns, begun_ns)
    turns = bool(stood) and all(_loop(s) is not None for s in stood)
    frozen = frozen_ns >= max(FROZEN_NS, FROZEN * (until_ns - begun_ns))
    moved = any(_lines(s) != _lines(before) for before, s in itertools.pairwise(stood))
    state = _state(usage, moved=moved, turns=turns, frozen=frozen)
    return RankActivity(process, state, usage, lines)


MOST_LINES = 5


def _lately(seen: list[StackSample], at_ns: int, begun_ns: int) -> list[StackSample]:
    """Where the main thread was seen in the last looks: places are written down when they have
    changed, and the first of a silence in any case.
    """
    recent_ns = min(max((at_ns - begun_ns) / 2, _SOONEST_NS), _LATEST_NS) + _SLACK_NS
    recent = [s for s in seen if at_ns - s.t_ns <= recent_ns]
    return seen[-len(recent) - 1 :]


def _loop(sample: StackSample) -> int | None:
    """The first line of the loop that only looks whether others have changed something."""
    return next((one.line for one in sample.stack[:2] if one.file == LOOP), None)


def _lines(sample: StackSample) -> list[tuple[str, int]]:
    """Without what the innermost line calls in C, which not every look can tell; of a loop that
    only looks its first line, and who called it."""
    if (loop := _loop(sample)) is None:
        return [(one.file, one.line) for one in sample.stack if one.file != BUILT_IN]
    at = programs_frame([one.file for one in sample.stack])
    outer = sample.stack[len(sample.stack) if at is None else at + 1 :]
    return [(LOOP, loop), *((one.file, one.line) for one in outer)]


def _state(usage: Usage, *, moved: bool, turns: bool, frozen: bool) -> str:
    """``turns``: what its main thread computes there is nothing; ``frozen``: what it computes lets
    none of its threads get on."""
    seconds = usage.over_ns / 1e9
    works = (usage.received or 0) / seconds >= RECEIVED or usage.others
    works |= (usage.read or 0) / seconds >= READ or (usage.written or 0) / seconds >= WRITTEN
    works |= turns and usage.beside
    if usage.busy and (turns or frozen):
        works |= usage.faults / seconds >= FAULTED or usage.cpu_ns / usage.over_ns >= CORES
        return MOVES if works else SPINS
    if works or moved or usage.busy:
        return MOVES
    return UNKNOWN if usage.read is None else STANDS
