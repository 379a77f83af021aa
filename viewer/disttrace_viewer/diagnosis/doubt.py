"""Which findings hold although journals are lost, and whether the verdict is complete."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from disttrace_viewer.analysis.process_ends import CASCADE, OWN, SILENT, TOGETHER_NS
from disttrace_viewer.diagnosis.completeness import Gaps, gaps_of
from disttrace_viewer.findings.case import Case
from disttrace_viewer.findings.finding import NO_DEFINITIONS, NOT_WHOLE, NOTE, Finding
from disttrace_viewer.findings.rules import crossed, lacking
from disttrace_viewer.trace.model import Trace

SEEN = frozenset(
    {
        "op_mismatch",
        "shape_mismatch",
        "dtype_mismatch",
        "reduce_op_mismatch",
        "root_mismatch",
        "size_mismatch",
        "not_in_group",
        "duplicate_rank",
        "straggler",
        "late_sender",
        "divergence",
        "value_divergence",
    }
)
"""Kinds that rest on what is in records, and not on what is in none."""
AWAY = ("missing_participant", "unmatched_send", "unmatched_recv")
"""Kinds that blame who is not there."""


def judged(case: Case, findings: Sequence[Finding]) -> tuple[tuple[Finding, ...], tuple[str, ...]]:
    """The findings that hold whatever the lost records said, and sentences about what is missing;
    no sentence: nothing is.
    """
    gaps = gaps_of(case.evidence.trace, case.evidence.sample)
    if any(not job.known for job in case.evidence.trace.other_jobs):
        findings = [_unnamed(f) if f.absent_ranks else f for f in findings]
    if not gaps.lost and not gaps.absent:
        return tuple(findings), ()
    kept = [f for f in findings if f.severity == NOTE or _holds(case, gaps, f)]
    if gaps.absent:
        kept = [_unblamed(f, gaps) if _may_follow(case, f) else f for f in kept]
    kept = [_unblamed(f, gaps) if _may_be_crossed(case, gaps, f) else f for f in kept]
    return tuple(kept), tuple(_sentences(gaps, case.evidence.trace))


def _unnamed(finding: Finding) -> Finding:
    """Without ranks of which no process was seen: beside the job lie journals without definitions,
    and one of these may be theirs.
    """
    settles = (*finding.settles, lacking.DEFINITIONS)
    return finding.doubted(NO_DEFINITIONS, absent_ranks=(), settles=settles)


def _may_follow(case: Case, finding: Finding) -> bool:
    """Whether who is blamed may have been ended by what a rank without a journal did: a backend
    aborts the innocent over what another one sends, and who dies first takes others along.
    """
    evidence = case.evidence
    if all(evidence.trace.processes[p].source == "log" for p in finding.culprits):
        return False  # its own words, and likely no more
    if finding.kind == "process_failed":
        return bool(finding.culprits) and not _failed_first(case, finding)
    return finding.kind in AWAY and any(
        evidence.ends[p].how in (SILENT, OWN, CASCADE)
        and evidence.cut_ns - evidence.ends[p].t_ns > TOGETHER_NS
        for p in finding.culprits
    )


def _may_be_crossed(case: Case, gaps: Gaps, finding: Finding) -> bool:
    """Whether a lost journal may be that of one who waits for those who wait here, so that they
    addressed the wrong one.
    """
    if finding.kind not in AWAY or not finding.culprits:
        return False
    known = {*finding.waiting, *finding.culprits}
    if not gaps.absent and not any(process not in known for process in gaps.lost):
        return False
    return any(
        wait.process in finding.waiting
        and not known.isdisjoint(wait.targets)
        and crossed.possible(case, wait)
        for wait in case.waits
    )


def _unblamed(finding: Finding, gaps: Gaps) -> Finding:
    """What happened, without saying whose doing it was."""
    more = lacking.journals({*gaps.absent, *gaps.ranks})
    return finding.doubted(
        NOT_WHOLE,
        culprits=(),
        settles=tuple(dict.fromkeys((*finding.settles, more))),
    )


def _holds(case: Case, gaps: Gaps, finding: Finding) -> bool:
    if finding.kind in SEEN:
        return True
    if not gaps.lost:
        return True  # somebody may never have been started: that is a finding and no gap
    if any(process in gaps.lost for process in finding.culprits):
        return False
    if finding.kind == "process_failed":
        return not finding.culprits or _failed_first(case, finding)
    if finding.waiting and all(process in gaps.lost for process in finding.waiting):
        return False  # their waiting may have ended in what is lost
    if finding.absent_ranks and (gaps.nameless or gaps.ranks & {*finding.absent_ranks}):
        return False
    if finding.kind == "rendezvous_unreachable":
        return False  # who listens may be among them
    if finding.cycle is not None:
        return not any(p in gaps.lost for a, _, b in finding.cycle for p in (a, b))
    return bool(finding.culprits or finding.absent_ranks)


def _failed_first(case: Case, finding: Finding) -> bool:
    """Whether a process failed by its own record, before anybody else did, and before anybody
    noticed that somebody was gone: what is lost cannot be the cause then.
    """
    evidence = case.evidence
    first = min((evidence.ends[p] for p in finding.culprits), key=lambda end: end.t_ns)
    if evidence.first_broken_ns is not None and first.t_ns > evidence.first_broken_ns:
        return False
    # An agent fails because one of its workers did; and what a call raised may be another's doing.
    return first.failure is not None and not any(
        evidence.trace.processes[p].is_agent or p in evidence.raised for p in finding.culprits
    )


def _sentences(gaps: Gaps, trace: Trace) -> Iterator[str]:
    for found in gaps.lost.values():
        yield from found
    for rank in gaps.absent:
        if rank in gaps.ranks:
            yield f"rank {rank}: its journal does not say what it did."
        elif len(gaps.nameless) >= len(gaps.absent):
            yield f"rank {rank}: no journal says that it is of this rank."
        else:
            yield f"rank {rank}: {lacking.not_found(trace)}."
