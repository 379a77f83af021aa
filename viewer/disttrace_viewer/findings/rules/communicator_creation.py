"""A communicator is being made, and all members are in it: a note, for a time of its own.

NCCL takes seconds for a few GPUs and minutes for thousands, inside the first call of a group. Who
is missing there is a matter of other rules; and after a part of the group's time-out so is this.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence

from disttrace_viewer.analysis.process_ends import ALIVE
from disttrace_viewer.evidence.waits.wait import Wait
from disttrace_viewer.findings import communicators
from disttrace_viewer.findings.case import Case
from disttrace_viewer.findings.finding import LIKELY, NOTE, Finding, Scope
from disttrace_viewer.trace.operation import Op
from disttrace_viewer.wording.findings import communicator_creation as words

OF_TIMEOUT = 4
"""After one part in so many of the group's time-out it is a stall."""


def find(case: Case) -> Iterator[Finding]:
    """One note per communicator that is made while all of its members are there."""
    seen: set[Hashable] = set()
    for wait in case.oldest() if case.evidence.live else ():
        if wait in case.owner or wait.exchange in seen or not wait.complete or wait.op.error:
            continue
        inside = communicators.members(case.evidence, wait)
        op = next((one for one in inside if communicators.making(case.evidence, one)), None)
        if op is None or not _all_run(case, inside):
            continue
        waits = [w for w in case.open() if w.exchange == wait.exchange or w.op in inside]
        seen.update(w.exchange for w in waits)
        since_ns = max(one.begin_ns for one in inside)
        lasts_ns = case.evidence.until_ns(op.process) - since_ns
        limit_ns = communicators.timeout_ns(case.evidence, op) // OF_TIMEOUT
        if case.evidence.stalled_after_ns <= lasts_ns < limit_ns:
            yield _finding(case, op, inside, waits, (lasts_ns, limit_ns))


def is_creation(finding: Finding) -> bool:
    """Whether a finding says no more than that a communicator is being made."""
    return finding.severity == NOTE and finding.kind == "no_progress"


def _all_run(case: Case, inside: Sequence[Op]) -> bool:
    """Whether nothing else explains why it takes long: one that has stopped, or has ended."""
    who = [one.process for one in inside]
    ends = case.evidence.ends
    run = all(ends[p].how == ALIVE and ends[p].held is None for p in who)
    return run and not case.evidence.still(who, who)


def _finding(
    case: Case, op: Op, inside: Sequence[Op], waits: Sequence[Wait], times: tuple[int, int]
) -> Finding:
    evidence, trace = case.evidence, case.evidence.trace
    who = tuple(case.by_rank(one.process for one in inside))
    lasts_ns, limit_ns = times
    backend = words.name(communicators.backend(evidence, op))
    first = communicators.is_first(evidence, op)
    return Finding(
        kind="no_progress",
        summary=words.summary(trace, op, who, lasts_ns, backend=backend, first=first),
        severity=NOTE,
        certainty=LIKELY,
        hint=words.hint(backend, limit_ns),
        waiting=who,
        op=op.call.op,
        group=trace.group_id(op.call),
        seq=op.seq,
        locations=evidence.locations(inside),
        at_ns=max(one.begin_ns for one in inside),
        scope=Scope(exchanges=frozenset(w.exchange for w in waits), roots=frozenset(who)),
    )
