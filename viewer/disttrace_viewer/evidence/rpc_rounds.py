"""Workers of ``torch.distributed.rpc``, and the rounds in which all of them come together."""

from __future__ import annotations

from collections.abc import Mapping

from disttrace_viewer.analysis.operation import Op
from disttrace_viewer.evidence.evidence import Evidence

TOGETHER = "rpc.all_gather"
"""What workers exchange at the begin and the end, over calls to one of them."""
_ROUNDS = ("init_rpc", "rpc.shutdown")


def round_of(evidence: Evidence, op: Op) -> Op | None:
    """The operation around one in which all workers come together."""
    around = evidence.sample.get(op.process, op.parent)
    while around is not None and around.call.op not in _ROUNDS:
        around = evidence.sample.get(around.process, around.parent)
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
