"""What broke an attempt that its launcher then repeated with success, or one of the trials that a
program ran in ranks of its own: a note, and no fault."""

from __future__ import annotations

from dataclasses import replace

from disttrace_viewer.analysis.process_ends import CASCADE, CLEAN, OWN, SILENT
from disttrace_viewer.findings.case import Case
from disttrace_viewer.findings.finding import ERROR, NOTE, Finding
from disttrace_viewer.trace.model import Trace
from disttrace_viewer.wording import sentences


def overcome(case: Case, finding: Finding) -> Finding:
    """The finding, as a note where all concerned are of an attempt after which another one ran to
    its end: their launcher, who waits for it, ended well, or nothing tells of its end, and every
    rank of that attempt did.
    """
    attempt, later = attempts(case, finding)
    if finding.severity != ERROR:
        return finding
    starter = _went_on(case, finding)
    if starter is not None:
        summary = of_a_trial(finding.summary, case.evidence.trace, starter)
        return replace(finding, severity=NOTE, summary=summary, hint=HINT_OF_A_TRIAL)
    if attempt is None or later is None:
        return finding
    if not _ran_to_its_end(case, later, _launchers(case, finding)):
        return finding
    summary = summary_text(finding.summary, attempt, later)
    return replace(finding, severity=NOTE, summary=summary, hint=HINT)


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
    launchers = (one for one in _launchers(case, finding) if one in trace.children)
    last = [_last(trace, launcher) for launcher in launchers]
    return attempt, max(last) if last and min(last) > (attempt or 0) else None


def _went_on(case: Case, finding: Finding) -> int | None:
    """The process that started all concerned as ranks, then others who all ended well, and ended
    well itself: a sweep in which a trial failed, by which it did not. No launcher is one: its end
    counts its attempts.
    """
    trace, ends = case.evidence.trace, case.evidence.ends
    concerned = [trace.processes[i] for i in _concerned(finding)]
    parents = {one.parent for one in concerned}
    starter = trace.by_id.get(parents.pop() or "") if len(parents) == 1 else None
    if starter is None or starter.is_agent or ends[starter.index].how != CLEAN:
        return None
    over_ns = max(ends[one.index].t_ns for one in concerned)
    begun = (trace.processes[i] for i in trace.children[starter.id])
    later = [p for p in begun if p.rank is not None and p.start_ns > over_ns]
    size = max((p.world_size or 0 for p in later), default=0)
    whole = {p.rank for p in later} == set(range(size))
    well = size > 0 and whole and all(ends[p.index].how == CLEAN for p in later)
    return starter.index if well else None


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
    for whom nothing traced has started. Who was killed with its node begins nothing anew: in its
    place those count that started the others of that attempt, as a job may go on with fewer nodes.
    """
    trace = case.evidence.trace
    concerned = [trace.processes[i] for i in _concerned(finding)]
    found = {one.parent or "" for one in concerned}
    if not any(_killed_in(case, one.parent, one.attempt) for one in concerned):
        return found
    tries = {(one.job, one.attempt) for one in concerned}
    together = [p for p in trace.processes if p.role == "worker" and (p.job, p.attempt) in tries]
    return {p.parent or "" for p in together if not _killed_in(case, p.parent, p.attempt)}


def _killed_in(case: Case, launcher: str | None, attempt: int | None) -> bool:
    """Whether a launcher has gone without a word, and began nothing after this attempt."""
    trace = case.evidence.trace
    one = trace.by_id.get(launcher or "")
    if one is None or case.evidence.ends[one.index].how != SILENT:
        return False
    return _last(trace, one.id) <= (attempt or 0)


def _last(trace: Trace, launcher: str) -> int:
    """The last attempt that a launcher began."""
    return max(trace.processes[i].attempt or 0 for i in trace.children[launcher])


def _concerned(finding: Finding) -> tuple[int, ...]:
    return (*finding.culprits, *finding.waiting)


HINT = "Nothing is lost but the time of that attempt; if it comes again, read why it failed."


def summary_text(what: str, attempt: int, later: int) -> str:
    """``what``: the sentence of the finding."""
    return f"Attempt {attempt} failed ({what.rstrip('.')}); attempt {later} ran to its end."


HINT_OF_A_TRIAL = (
    "The program went on without it, and what it began later ended well; if no rank of it may fail,"
    " have it end with another code."
)


def of_a_trial(what: str, trace: Trace, starter: int) -> str:
    """``starter``: the process that ran the trials."""
    label = sentences.processes(trace, [starter])
    return (
        f"One run of several that {label} began failed ({what.rstrip('.')}); {label} began others"
        " after it, which ended well, as it did."
    )
