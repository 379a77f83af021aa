"""What broke an attempt that its launcher then repeated with success: a note, and no fault."""

from __future__ import annotations

from dataclasses import replace

from disttrace_viewer.analysis.process_ends import CASCADE, CLEAN, OWN
from disttrace_viewer.findings.case import Case
from disttrace_viewer.findings.finding import ERROR, NOTE, Finding
from disttrace_viewer.wording.findings import tried_again as words


def overcome(case: Case, finding: Finding) -> Finding:
    """The finding, as a note where all concerned are of an attempt after which another one ran to
    its end: their launcher, who waits for it, ended well, or nothing tells of its end, and every
    rank of that attempt did.
    """
    attempt, later = attempts(case, finding)
    if finding.severity != ERROR or attempt is None or later is None:
        return finding
    if not _ran_to_its_end(case, later, _launchers(case, finding)):
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
        max(trace.processes[i].attempt or 0 for i in trace.children[launcher])
        for launcher in _launchers(case, finding)
        if launcher in trace.children
    ]
    return attempt, max(last) if last and min(last) > (attempt or 0) else None


def _ran_to_its_end(case: Case, attempt: int, launchers: set[str]) -> bool:
    trace, ends = case.evidence.trace, case.evidence.ends
    known = [trace.by_id.get(launcher) for launcher in launchers]
    told = {None if one is None else ends[one.index].how for one in known}
    if told == {CLEAN} or told & {OWN, CASCADE}:
        return told == {CLEAN}
    # Nothing tells of a launcher's end; that of the whole job is in all ranks of its last attempt.
    if attempt != max(p.attempt or 0 for p in trace.processes):
        return False
    ranks = {p.rank: p for p in trace.processes if p.attempt == attempt and p.rank is not None}
    size = max((p.world_size or 0 for p in ranks.values()), default=0)
    return ranks.keys() == set(range(size)) and all(
        ends[p.index].how == CLEAN for p in ranks.values()
    )


def _launchers(case: Case, finding: Finding) -> set[str]:
    """Ids of the processes that started those concerned, whose journals may be lost; an empty one
    for whom nothing traced has started.
    """
    return {case.evidence.trace.processes[i].parent or "" for i in _concerned(finding)}


def _concerned(finding: Finding) -> tuple[int, ...]:
    return (*finding.culprits, *finding.waiting)
