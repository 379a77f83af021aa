"""What of a verdict counts while the job runs: what holds up somebody now, and not what is over."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from disttrace_viewer.analysis.operation import Op
from disttrace_viewer.analysis.process_ends import ALIVE
from disttrace_viewer.evidence.node_rendezvous import AGENT
from disttrace_viewer.findings.case import Case
from disttrace_viewer.findings.finding import CERTAIN, ERROR, Finding
from disttrace_viewer.trace.model import Process

HABIT = 2
"""Who has waited at a place for so long before is given as many times that."""
ASKS = -1
"""In place of an operation's number where one waits by asking, each time in another one."""


def living(case: Case) -> list[Process]:
    """Processes that run, as far as anybody knows."""
    ends = case.evidence.ends
    return [
        p
        for p in case.evidence.trace.processes
        if ends[p.index].how == ALIVE or ends[p.index].lingers
    ]


def workers(case: Case) -> set[int]:
    """Those of them that launch no others."""
    return {process.index for process in living(case) if process.role != AGENT}


def waits(case: Case) -> list[Op]:
    """What somebody waits in, or asks for again and again; whoever gave up does not."""
    waiting = [op for op in case.evidence.blocking if op.error is None]
    return waiting + [wait.op for wait in case.waits if wait.polled]


def ages_s(case: Case) -> list[float]:
    """For how many seconds each has waited."""
    return [case.evidence.age_ns(op) / 1e9 for op in waits(case)]


def open_waits(case: Case) -> set[tuple[str, int]]:
    """Process (its id) and operation number of all that wait."""
    return {_named(case, op, polled=False) for op in case.evidence.blocking if op.error is None} | {
        _named(case, wait.op, polled=True) for wait in case.waits if wait.polled
    }


def waits_of(case: Case, errors: Sequence[Finding]) -> set[tuple[str, int]]:
    """The same of the waits that findings are about."""
    found = {i for finding in errors for i in finding.waiting}
    return {
        _named(case, w.op, polled=w.polled)
        for w in case.waits
        if w.process in found and (w.polled or w in case.of_process.get(w.process, ()))
    }


def _named(case: Case, op: Op, *, polled: bool) -> tuple[str, int]:
    return case.evidence.trace.processes[op.process].id, ASKS if polled else op.number


def stalled(case: Case, findings: Iterable[Finding], limit_s: float) -> list[Finding]:
    """The errors by which somebody has stood still for the limit.

    Whoever was quiet for so long may have been so before it began to wait. Where nobody waits, and
    all that a finding is about is over, nothing stands still: a launcher sees to those that failed,
    and may have started them anew. What holds up the living comes before why an earlier attempt
    failed.
    """
    ages, alive = ages_s(case), workers(case)
    if max(ages, default=limit_s) < limit_s:
        return []
    found = [
        f
        for f in findings
        if f.severity == ERROR
        and not _habitual(case, f)
        and (ages or not alive.isdisjoint((*f.culprits, *f.waiting)))
    ]
    return sorted(found, key=lambda f: alive.isdisjoint((*f.culprits, *f.waiting)))


def _habitual(case: Case, finding: Finding) -> bool:
    """Whether all who wait have waited at that place for about as long before: a checkpoint.

    Who gave up, however soon, does not wait any more.
    """
    of = [case.of_process[p][0] for p in finding.waiting if case.of_process.get(p)]
    return bool(of) and all(
        w.op.error is None and case.evidence.age_ns(w.op) < HABIT * case.evidence.longest_ns(w.op)
        for w in of
    )


def by_records(errors: Iterable[Finding]) -> list[Finding]:
    """Those that hold whatever ranks did of which nothing is known: who is not known may be in a
    call as well as missing there.
    """
    return [f for f in errors if f.culprits or (f.certainty == CERTAIN and not f.absent_ranks)]
