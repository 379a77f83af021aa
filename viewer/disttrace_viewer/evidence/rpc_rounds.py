"""Workers of ``torch.distributed.rpc``: what they run for others, and rounds of all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from disttrace.journal.format import RPC_RUN
from disttrace_viewer.evidence.evidence import Evidence
from disttrace_viewer.evidence.recorded import SHUTDOWN
from disttrace_viewer.trace.operation import Op

TOGETHER = "rpc.all_gather"
"""What workers exchange at the begin and the end, over calls to one of them."""
_ROUNDS = ("init_rpc", SHUTDOWN)


def round_of(evidence: Evidence, op: Op) -> Op | None:
    """The operation around one in which all workers come together, or that itself."""
    around: Op | None = op
    while around is not None and around.call.op not in _ROUNDS:
        around = evidence.sample.around(around)
    return around


def workers(evidence: Evidence, process: int) -> Mapping[object, int]:
    """By name and by id the processes that this one may call."""
    trace = evidence.trace
    mine = trace.processes[process]
    found: dict[object, int] = {}
    for op in evidence.sample.of_kind("composed"):
        other = trace.processes[op.process]
        if op.call.op == "init_rpc" and (other.job, other.attempt) == (mine.job, mine.attempt):
            for key in (op.call.args.get("name"), op.call.args.get("rank")):
                if key is not None:
                    found.setdefault(key, op.process)
    return found


def running(evidence: Evidence) -> Mapping[int, Sequence[Op]]:
    """What each worker runs for others, the oldest first."""
    found: dict[int, list[Op]] = {}
    for op in evidence.pending:
        if op.call.op == RPC_RUN:
            found.setdefault(op.process, []).append(op)
    return found


def awaited(evidence: Evidence, op: Op, runs: Mapping[int, Sequence[Op]]) -> tuple[Op, ...]:
    """What is run that a remote call waits for; of several any may be the one. What its worker runs
    of that function; else what takes all threads of its worker, or of its caller: there one has to
    take the answer in.
    """
    worker = callee(evidence, op)
    if worker is None:
        return ()
    theirs, mine = runs.get(worker, ()), runs.get(op.process, ())
    same = [one for one in theirs if is_of(evidence, one, op)]
    if same or _all_taken(evidence, worker, theirs):
        return tuple(same or theirs)
    known = threads(evidence, op.process) is not None
    return tuple(mine) if known and _all_taken(evidence, op.process, mine) else ()


def callee(evidence: Evidence, op: Op) -> int | None:
    """The worker that a remote call is sent to."""
    return workers(evidence, op.process).get(op.call.args.get("to"))


def holding(evidence: Evidence, op: Op, runs: Mapping[int, Sequence[Op]]) -> tuple[Op, ...]:
    """What is run that holds up a round to which all have come: the end is there when everything is
    over, and what they exchange before it takes a thread of each.
    """
    found: list[Op] = []
    for worker in sorted({*workers(evidence, op.process).values()}):
        theirs = runs.get(worker, ())
        known = threads(evidence, worker) is not None
        if op.call.op == SHUTDOWN or (known and _all_taken(evidence, worker, theirs)):
            found += theirs
    return tuple(found)


def is_of(evidence: Evidence, run: Op, op: Op) -> bool:
    """Whether a worker may run that for a remote call: it is of the function, and began no earlier
    where one clock tells.
    """
    of_function = op.call.args.get("func") in (None, run.call.args.get("func"))
    clocks = {evidence.trace.processes[one.process].clock for one in (run, op)}
    waits_later = op.call.op in ("rpc.wait", "to_here")
    return of_function and (waits_later or len(clocks) > 1 or run.begin_ns >= op.begin_ns)


def threads(evidence: Evidence, process: int) -> int | None:
    """How many calls a worker runs at a time; older journals do not tell."""
    made = (op for op in evidence.sample.of_process.get(process, ()) if op.call.op == "init_rpc")
    told = next((op.call.args.get("threads") for op in made), None)
    return told if isinstance(told, int) else None


def _all_taken(evidence: Evidence, process: int, runs: Sequence[Op]) -> bool:
    """Whether no thread of a worker is left; where nobody knows how many it has, any call is it."""
    return len(runs) >= (threads(evidence, process) or 1)


def missing(evidence: Evidence, op: Op) -> frozenset[int]:
    """Workers that have not begun the round which an operation is a part of."""
    around = round_of(evidence, op)
    if around is None:
        return frozenset()
    came = {one.process for one in evidence.sample.ops if one.call.op == around.call.op}
    found = {*workers(evidence, op.process).values()}
    if around.call.op == "init_rpc":
        mine = evidence.trace.processes[op.process]
        found |= {
            p.index
            for p in evidence.trace.processes
            if p.rank is not None and (p.job, p.attempt) == (mine.job, mine.attempt)
        }
    return frozenset(found - came - {op.process})
