"""A launcher was killed, and the ranks that it had started lived on: a note."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from disttrace_viewer.analysis.process_ends import MISSED_NS, SILENT, End
from disttrace_viewer.findings.case import Case
from disttrace_viewer.findings.finding import NOTE, Finding
from disttrace_viewer.trace.model import Trace
from disttrace_viewer.trace.process import Process
from disttrace_viewer.wording import sentences
from disttrace_viewer.wording.sentences import ended


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
                summary=summary(trace, launcher, end, left),
                hint=HINT,
                at_ns=gone_ns,
            )


HINT = (
    "Nobody starts these ranks anew or ends them with the others of the job: end them by hand if"
    " they hold ports or devices still."
)


def summary(trace: Trace, launcher: Process, end: End, left: Sequence[int]) -> str:
    """``Agent 4711 was ended by SIGKILL, and rank 1 lived on.``"""
    who = sentences.subject(trace, [launcher.index])
    return f"{who} {ended(end, surely=True)}, and {sentences.processes(trace, left)} lived on."
