"""What broke an attempt that its launcher then repeated with success: a note, and no fault."""

from __future__ import annotations

from dataclasses import replace

from disttrace_viewer.analysis.process_ends import CLEAN
from disttrace_viewer.findings.case import Case
from disttrace_viewer.findings.finding import ERROR, NOTE, Finding
from disttrace_viewer.wording.findings import tried_again as words


def overcome(case: Case, finding: Finding) -> Finding:
    """The finding, as a note where all concerned are of an attempt after which another one ran to
    its end: their launcher, who waits for it, ended well.
    """
    trace, ends = case.evidence.trace, case.evidence.ends
    attempt, later = attempts(case, finding)
    if finding.severity != ERROR or attempt is None or later is None:
        return finding
    launchers = [trace.by_id.get(trace.processes[i].parent or "") for i in _concerned(finding)]
    if any(one is None or ends[one.index].how != CLEAN for one in launchers):
        return finding
    summary = words.summary(finding.summary, attempt, later)
    return replace(finding, severity=NOTE, summary=summary, hint=words.HINT)


def attempts(case: Case, finding: Finding) -> tuple[int | None, int | None]:
    """The attempt that all concerned are of, and the last one that their launchers all began after
    it; None where there is no such thing.
    """
    trace = case.evidence.trace
    concerned = [trace.processes[i] for i in _concerned(finding)]
    own = {p.attempt for p in concerned}
    if len(own) != 1 or None in own:
        return None, None
    (attempt,) = own
    last = [
        max(trace.processes[i].attempt or 0 for i in trace.children.get(launcher, ()))
        for launcher in {p.parent or "" for p in concerned if p.parent in trace.by_id}
    ]
    return attempt, max(last) if last and min(last) > (attempt or 0) else None


def _concerned(finding: Finding) -> tuple[int, ...]:
    return (*finding.culprits, *finding.waiting)
