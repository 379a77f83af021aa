"""Who waits at the start for those that still import: a note, for a time of its own.

Hundreds of ranks that import from one file server take minutes, and no two of them as long.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from disttrace_viewer.analysis.process_ends import ALIVE
from disttrace_viewer.analysis.sample import BUILDING
from disttrace_viewer.evidence.waits.wait import Wait, import_limit_ns
from disttrace_viewer.findings.case import Case
from disttrace_viewer.findings.finding import NOTE, Finding
from disttrace_viewer.findings.rules.communicator_creation import is_creation
from disttrace_viewer.trace.operation import GROUPED


def may_come(case: Case, waits: Sequence[Wait], sinks: Iterable[int]) -> bool:
    """Whether it is too early to say of a rendezvous that somebody is missing: no process that
    lives has used a group yet, and those that are known and did not come may be on their way.
    """
    evidence = case.evidence
    if not evidence.live or any(w.op.error is not None for w in waits) or _met(case):
        return False
    for process in sinks:
        end = evidence.ends[process]
        last = case.last(process)
        begins = last is not None and last.pending and last.call.op.startswith(BUILDING)
        if end.how != ALIVE or end.held is not None or (last is not None and not begins):
            return False  # it came that far before
    return all(evidence.age_ns(w.op) < import_limit_ns(evidence) for w in waits)


def is_start(finding: Finding) -> bool:
    """Whether a finding says no more than that a start takes long."""
    return is_creation(finding) or (
        finding.severity == NOTE
        and finding.kind in ("rendezvous_incomplete", "rendezvous_unreachable")
    )


def _met(case: Case) -> bool:
    """Whether processes that live have exchanged anything: a group is on record before its members
    are connected.
    """
    evidence = case.evidence
    return any(evidence.ends[op.process].how == ALIVE for op in evidence.sample.of_kind(*GROUPED))
