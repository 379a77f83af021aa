"""A launcher was killed, and the ranks that it had started lived on: a note."""

from __future__ import annotations

from collections.abc import Iterator

from disttrace_viewer.analysis.process_ends import MISSED_NS, SILENT
from disttrace_viewer.findings.case import Case
from disttrace_viewer.findings.finding import NOTE, Finding
from disttrace_viewer.wording.findings import orphaned as words


def find(case: Case) -> Iterator[Finding]:
    """One note per launcher that was seen to be gone, and gave no word of an end."""
    trace, evidence = case.evidence.trace, case.evidence
    for launcher in trace.processes:
        end, gone_ns = evidence.ends[launcher.index], evidence.seen[launcher.index].gone_ns
        if not launcher.is_agent or end.how != SILENT or end.interrupted or not gone_ns:
            continue
        left = [
            p
            for p in trace.children.get(launcher.id, ())
            if trace.processes[p].rank is not None
            and trace.processes[p].last_ns > gone_ns + MISSED_NS
        ]
        if left:
            yield Finding(
                kind="process_failed",
                severity=NOTE,
                summary=words.summary(trace, launcher, end, left),
                hint=words.HINT,
                at_ns=gone_ns,
            )
