"""Who waits while all that it waits for get on with their work: a note, and no fault.

A spare waits for its promotion, a worker for its first work, an early one in a barrier. As soon as
one of those waited for stops, ends, or is nowhere to be seen, it is an error again.
"""

from __future__ import annotations

from collections.abc import Iterator

from disttrace_viewer.analysis.process_ends import ALIVE, SILENT
from disttrace_viewer.evidence.recorded import STUCK_NS
from disttrace_viewer.evidence.waits.asking import ASKED_NS
from disttrace_viewer.evidence.waits.wait import KEY, Wait
from disttrace_viewer.findings.case import Case
from disttrace_viewer.findings.finding import ERROR, NOTE, Finding
from disttrace_viewer.trace.operation import GROUPED, Op
from disttrace_viewer.wording.reasons import MAY_END

KINDS = frozenset(
    {
        "missing_participant",
        "unmatched_send",
        "unmatched_recv",
        "store_key_missing",
    }
)
"""Kinds that are about somebody who does not come."""
ABOUT_WAITS = KINDS | {"rendezvous_incomplete", "no_progress"}
"""Kinds of what may still come about."""
_ROUNDS = 3
"""So many exchanges of one sort are more than a step on the way to somewhere else."""


def eased(case: Case, finding: Finding) -> Finding:
    """The finding, as a note where everybody waited for gets on."""
    if finding.severity != ERROR or finding.kind not in KINDS or finding.absent_ranks:
        return finding
    waits = [w for w in case.open() if w.exchange in finding.scope.exchanges]
    if not waits or any(w.op.error is not None or w.absent or w.behind for w in waits):
        return finding
    since_ns = min(w.op.since_ns for w in waits)
    awaited = {p for wait in waits for p in _awaited(case, wait)} - {w.process for w in waits}
    if not awaited or not all(_gets_on(case, p, since_ns) for p in awaited):
        return finding
    return finding.doubted(MAY_END, severity=NOTE, hint=HINT, culprits=())


def is_waiting(finding: Finding) -> bool:
    """Whether a finding is such a note."""
    return finding.severity == NOTE and finding.kind in {*KINDS, "waiting_for_input"}


def _awaited(case: Case, wait: Wait) -> Iterator[int]:
    """All that somebody waits for, or that may set the key that it waits for."""
    yield from wait.targets
    if wait.kind == KEY and wait.unknown and isinstance(wait.exchange, tuple):
        yield from case.setters.able(str(wait.exchange[1]))


def _gets_on(case: Case, process: int, since_ns: int) -> bool:
    """Whether a process exchanges something with others again and again: long after others began to
    wait it came through a call, or is in one that it has come through before, and that not for so
    long that it stands still itself.
    """
    evidence = case.evidence
    end = evidence.ends[process]
    lives = end.how == ALIVE and end.held is None and process not in evidence.timeless
    if not lives and not (end.how == SILENT and process in case.cut_off):
        return False
    op = _newest(case, process)
    if op is None or op.error is not None or op.begin_ns - since_ns < STUCK_NS:
        return False
    limit_ns = max(evidence.stalled_after_ns, ASKED_NS)
    if op.end_ns is None:
        return evidence.longest_ns(op) > 0 and evidence.age_ns(op) < limit_ns
    return (op.seq or 0) >= _ROUNDS and evidence.until_ns(process) - op.end_ns < limit_ns


def _newest(case: Case, process: int) -> Op | None:
    """The newest collective or message of the thread that communicates."""
    kept = [
        op for op in case.evidence.sample.of_process.get(process, ()) if op.call.kind in GROUPED
    ]
    main = [op for op in kept if op.thread == 0]
    return max(main or kept, key=lambda op: op.number, default=None)


HINT = (
    "Nothing stands still: everybody waited for gets on with calls made before. If the wait is not"
    " meant to be, see whether they come to it, or passed it over."
)
