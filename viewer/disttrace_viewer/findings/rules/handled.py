"""Part of findings about who waits and who does not come: the exception that one of them handles
there, in an ``except``, a ``finally`` or an ``__exit__`` that calls, sleeps or joins.

Whoever does so has left the path of the others, and why is in no traceback before it ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from disttrace_viewer.analysis.operation import innermost
from disttrace_viewer.evidence import mismatches
from disttrace_viewer.findings.case import Case
from disttrace_viewer.findings.finding import ERROR, Finding
from disttrace_viewer.trace.error_texts import is_connection_error
from disttrace_viewer.trace.model import Trace
from disttrace_viewer.trace.process import Failure
from disttrace_viewer.wording import sentences
from disttrace_viewer.wording.sentences import raised

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
        summary=f"{finding.summary} {sentence(trace, new)}",
        hint=hint(trace, new) if {*finding.culprits} <= {*new} else finding.hint,
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


def sentence(trace: Trace, found: Mapping[int, Failure]) -> str:
    """``Rank 1 handles ValueError: bad batch (train.py:12) there.``"""
    told = sentences.together((_what(failure), process) for process, failure in found.items())
    return " ".join(
        f"{sentences.subject(trace, who)} handle{'s' * (len(who) == 1)} {what} there."
        for what, who in told.items()
    )


def hint(trace: Trace, found: Mapping[int, Failure]) -> str:
    """What to read first, and what to change."""
    what = sentences.listed(list(dict.fromkeys(map(_what, found.values()))))
    return (
        f"Find why {sentences.processes(trace, found)} raised {what}. What runs in `except`,"
        " `finally` and at the end of a `with` runs on the ranks that raised alone: do not"
        " communicate or wait there where the others are elsewhere."
    )


def _what(failure: Failure) -> str:
    return f"{raised(failure)}{sentences.aside(innermost(failure.stack))}"
