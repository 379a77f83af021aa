"""Part of findings about who waits and who does not come: the exception that one of them handles
there, in an ``except``, a ``finally`` or an ``__exit__`` that calls, sleeps or joins.

Whoever does so has left the path of the others, and why is in no traceback before it ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from disttrace_viewer.analysis.error_texts import is_connection_error
from disttrace_viewer.evidence import mismatches
from disttrace_viewer.findings.case import Case
from disttrace_viewer.findings.finding import ERROR, Finding
from disttrace_viewer.trace.process import Failure
from disttrace_viewer.wording.ends import raised
from disttrace_viewer.wording.findings import handled as words

_KINDS = mismatches.KINDS | {
    *("missing_participant", "size_mismatch", "unmatched_send", "unmatched_recv", "deadlock"),
    *("store_key_missing", "rendezvous_incomplete", "group_mismatch"),
}


def told(case: Case, finding: Finding) -> Finding:
    """A finding with what those to blame handle; where nobody is, with what anybody does."""
    if finding.severity != ERROR or finding.kind not in _KINDS:
        return finding
    about = finding.culprits or (*sorted(finding.scope.roots), *finding.waiting)
    found = dict(_handled(case, dict.fromkeys(about)))
    new = {p: one for p, one in found.items() if raised(one) not in finding.summary}
    if not new:
        return finding
    trace = case.evidence.trace
    return replace(
        finding,
        summary=f"{finding.summary} {words.sentence(trace, new)}",
        hint=words.hint(trace, new) if {*finding.culprits} <= {*new} else finding.hint,
    )


def _handled(case: Case, processes: Iterable[int]) -> Iterator[tuple[int, Failure]]:
    """Of each what its main thread handles where it stands. That others went away is what became of
    something, and no reason for it.
    """
    evidence = case.evidence
    for process in processes:
        if evidence.ends[process].failure is not None:
            continue  # of that is told, and of what it was raised from
        for failure in evidence.trace.processes[process].handling:
            kept = evidence.sample.of_process.get(process, ())
            moved = any(op.thread == 0 and op.begin_ns > failure.t_ns for op in kept)
            if failure.thread == 0 and not moved and not is_connection_error(failure.chain[0]):
                yield process, failure
