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
    concerned = [trace.processes[i] for i in (*finding.culprits, *finding.waiting)]
    attempts = {p.attempt for p in concerned}
    if finding.severity != ERROR or len(attempts) != 1 or None in attempts:
        return finding
    (attempt,) = attempts
    later = 0
    for launcher in {p.parent or "" for p in concerned}:
        above = trace.by_id.get(launcher)
        tried = [trace.processes[i].attempt or 0 for i in trace.children.get(launcher, ())]
        if above is None or ends[above.index].how != CLEAN or max(tried) <= (attempt or 0):
            return finding
        later = max(later, *tried)
    summary = words.summary(finding.summary, attempt or 0, later)
    return replace(finding, severity=NOTE, summary=summary, hint=words.HINT)
