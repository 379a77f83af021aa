"""Somebody has waited for the limit, and of ranks that may be missing there nothing is known.

No accusation, and nothing that holds once their journals are read: it is asked while a job runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from disttrace_viewer.analysis.operation import frame
from disttrace_viewer.evidence.waits.wait import RENDEZVOUS
from disttrace_viewer.findings.case import Case
from disttrace_viewer.findings.finding import Finding
from disttrace_viewer.trace.model import Trace
from disttrace_viewer.trace.operation import Op
from disttrace_viewer.wording import sentences
from disttrace_viewer.wording.reasons import NO_JOURNAL


def find(case: Case, unknown: Sequence[int]) -> Iterator[Finding]:
    """Who has waited longest. ``unknown``: ranks of which nothing is known."""
    evidence, trace = case.evidence, case.evidence.trace
    waiting = [w for w in case.waits if w.holds and case.old(w)]
    if not waiting:
        return
    # Those who start stand in constructors of a store or of a group, in one call of the program.
    calls = [evidence.top(w.op) if w.kind == RENDEZVOUS else w.op for w in waiting]
    first = min(calls, key=lambda op: op.begin_ns)
    alike = [op for op in calls if (op.call.op, op.seq) == (first.call.op, first.seq)]
    who = sorted({op.process for op in alike})
    group = trace.group_of(first.call)
    members = None if group is None or group.ranks is None else {*group.ranks}
    missing = [r for r in unknown if members is None or r in members] or unknown
    yield Finding(
        kind="no_progress",
        because=(NO_JOURNAL,),
        summary=summary(trace, who, first, max(map(evidence.age_ns, alike)), missing),
        waiting=tuple(who),
        group=trace.group_id(first.call),
        seq=first.seq,
    )


def summary(
    trace: Trace, who: Sequence[int], op: Op, waited_ns: int, missing: Sequence[int]
) -> str:
    """Who waits in what, for how long, and who may be missing."""
    where = frame(op)
    at = "" if where is None else f" at {sentences.is_at(where)}"
    call, group = sentences.operation(trace, op), op.call.group
    return (
        f"{sentences.have_been(trace, who, within=group)} waiting in {call}{at} for"
        f" {sentences.span(waited_ns)}; {sentences.ranks(missing)} may be missing there."
    )
