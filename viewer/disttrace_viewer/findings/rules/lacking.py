"""What a finding is worth where the evidence of its processes lacks what it rests on.

Evidence of other tools holds less than a journal. What stands in the records of both sides (their
operations, sizes, dtypes) is as certain as ever; what is concluded from the absence of a record is
not, for it may have been overwritten or never been made.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from disttrace_viewer.findings.case import Case
from disttrace_viewer.findings.finding import ERROR, LIKELY, NOTE, Finding
from disttrace_viewer.trace.operation import SYNCHRONIZING
from disttrace_viewer.trace.process import JOURNAL
from disttrace_viewer.wording.findings import missing_evidence as words

RECORDED = frozenset({"op_mismatch", "shape_mismatch", "dtype_mismatch", "size_mismatch"})
"""Kinds that rest on what stands in records."""
OF_ENDS = frozenset({"straggler", "late_sender", "unwaited_work"})
"""Kinds that rest on when, or whether, operations ended."""
OF_ABSENCE = frozenset({"missing_participant", "unmatched_send", "unmatched_recv"})
"""Kinds that say that somebody did not come, which takes time to be true."""
OF_TIME = OF_ABSENCE | {"deadlock"}
"""Kinds of which it has to be known that the evidence of all is of one moment."""


def tempered(case: Case, finding: Finding) -> Finding | None:
    """The finding as far as the evidence bears it; None where it bears nothing of it."""
    of = _foreign(case, finding)
    if not of:
        return finding
    if finding.kind in OF_ENDS and not case.knows("ends", of):
        return None
    if finding.kind == "missing_participant" and _came_later(case, finding):
        return None
    if finding.kind not in RECORDED or not all(case.knows(what, of) for what in ("order", "rank")):
        finding = replace(finding, certainty=LIKELY)
    if finding.kind not in OF_TIME:
        return finding
    if finding.kind in OF_ABSENCE and len(finding.culprits) > 1 and not case.knows("messages", of):
        # One of them may be in a receive from another one.
        finding = replace(finding, culprits=())
    if case.knows("time", of):
        return finding
    return replace(finding, severity=NOTE, hint=words.TIMES)


def _came_later(case: Case, finding: Finding) -> bool:
    """Whether somebody is through with a collective that nobody completes alone: then all have
    come, and those that have not were dumped before the others.
    """
    sample = case.evidence.sample
    for wait in case.waits:
        if wait.exchange not in finding.scope.exchanges or wait.stream is None:
            continue
        if wait.op.call.op in SYNCHRONIZING and wait.op.seq is not None:
            members = sample.members(wait.stream, wait.op.seq).values()
            return any(one.status == "ok" for one in members)
    return False


def sentences(case: Case, findings: Sequence[Finding]) -> tuple[str, ...]:
    """What of the verdict stays open."""
    told = {p for f in findings if f.severity == ERROR for p in f.waiting}
    waiting = {wait.process for wait in case.open()} - told
    noted = {p for f in findings if f.severity == NOTE for p in f.waiting}
    return (words.TIMELESS,) if (waiting | noted) & case.evidence.timeless else ()


def _foreign(case: Case, finding: Finding) -> list[int]:
    concerned = {*finding.culprits, *finding.waiting, *finding.scope.roots, *finding.scope.members}
    return [p for p in concerned if case.evidence.trace.processes[p].source != JOURNAL]
