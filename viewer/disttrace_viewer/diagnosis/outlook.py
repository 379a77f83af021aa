"""What is to come of a wait: whether the missing are at work, and when a time limit ends it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from disttrace_viewer.analysis.process_ends import ALIVE, SILENT
from disttrace_viewer.evidence.activity import MOVES, SPINS, STANDS, Activity, activity
from disttrace_viewer.evidence.deadlines import Deadline, deadline
from disttrace_viewer.findings.case import Case
from disttrace_viewer.findings.finding import ERROR, WARNING, Finding
from disttrace_viewer.findings.rules.getting_on import ABOUT_WAITS
from disttrace_viewer.wording import sentences
from disttrace_viewer.wording.quantities import clock_time, size

MOST = 2
"""Ranks of which a summary says what they do."""
SHOWN = 1_000_000
"""Bytes that are worth a word."""
NEAR_S, OF_LIMIT = 60.0, 4
"""So long before a time limit strikes, and that part of it at most, who is at work is late."""


def outlook(case: Case, finding: Finding) -> Finding:
    """The finding with what the missing do and the time that is left; a warning where all of them
    are at work and there is time left.
    """
    if finding.kind not in ABOUT_WAITS or finding.severity != ERROR:
        return finding
    evidence = case.evidence
    waits = [w for p in finding.waiting for w in case.at(p)]
    open_waits = [w for w in waits if w.op.error is None]
    found = deadline(evidence, [w.op for w in open_waits])
    missing = finding.culprits or tuple(sorted(finding.scope.roots))
    if not waits or finding.kind == "no_progress" or not missing:
        return replace(finding, deadline=found)
    since_ns = min(w.op.since_ns for w in waits)
    until_ns = max(w.op.end_ns or evidence.cut_ns for w in waits)
    done = tuple(activity(evidence, p, since_ns, until_ns) for p in case.by_rank(missing))
    said = " ".join(_sentence(case, one) for one in done[:MOST] if one.usage is not None)
    finding = replace(
        finding,
        activity=done,
        deadline=found,
        summary=f"{finding.summary} {said}" if said else finding.summary,
    )
    lives = all(evidence.ends[p].how in (ALIVE, SILENT) for p in missing)
    works = lives and len(open_waits) == len(waits) and all(one.state == MOVES for one in done)
    if not works or finding.absent_ranks or any(w.absent for w in waits):
        return finding
    return replace(finding, severity=ERROR if _is_near(case, found) else WARNING, hint=HINT)


def _is_near(case: Case, found: Deadline | None) -> bool:
    if found is None:
        return False
    left_s = found.at_s - case.evidence.cut_ns / 1e9
    return left_s < near_s(found.limit_s)


def near_s(limit_s: float) -> float:
    """So long before a time limit strikes it is near."""
    return min(NEAR_S, limit_s / OF_LIMIT)


def marks(findings: Iterable[Finding]) -> list[float]:
    """When it is to be said again that time runs out (unix): at half of the limit of the first
    finding, and when that is near.
    """
    limit = next((f.deadline for f in findings), None)
    if limit is None:
        return []
    return [limit.at_s - limit.limit_s / 2, limit.at_s - near_s(limit.limit_s)]


def _sentence(case: Case, one: Activity) -> str:
    """``Rank 0 is at work in tokenize at data.py:12: 97 % of a core in the last 10 s.``"""
    usage = one.usage
    assert usage is not None
    now = case.evidence.live
    subject = sentences.subject(case.evidence.trace, [one.process])
    at = f" at {sentences.is_at(one.lines[0])}" if one.lines else ""
    over = sentences.span(usage.over_ns)
    share = f"{one.cpu:.0%} of a core".replace("%", " %")
    if one.state == STANDS:
        cpu = "no CPU time" if usage.cpu_ns < usage.over_ns / 100 else share
        return f"{subject} {'stands' if now else 'stood'}{at}, {cpu} for {over}."
    if one.state == SPINS:
        verb = "spins" if now else "spun"
        return f"{subject} {verb}{at}: {share} for {over}, and the line is the same."
    if one.state != MOVES:
        return ""
    counts = {"read": usage.read, "written": usage.written, "received": usage.received}
    moved = [f"{size(n)} {word}" for word, n in counts.items() if n is not None and n >= SHOWN]
    used = ", ".join([share, *moved])
    place = one.lines[0] if one.lines else None
    if place is not None:
        function = "" if place.function == "<module>" else f" in {place.function}"
        at = f"{function} at {sentences.place(place)}"
    of = ", with processes that it started" if usage.others else ""
    return f"{subject} {'is' if now else 'was'} at work{at}: {used} in the last {over}{of}."


def time_left(case: Case, finding: Finding) -> str | None:
    """``gloo's limit of 30 min ends this in 19:40, at 17:12:05: then gloo raises ...``."""
    limit = finding.deadline
    left_s = 0 if limit is None else round(limit.at_s - case.evidence.cut_ns / 1e9)
    if limit is None or left_s <= 0 or not case.evidence.live:
        return None
    minutes, seconds = divmod(left_s, 60)
    at = clock_time(round(limit.at_s) * 10**9).rpartition(" ")[2]
    given = f"{limit.limit_s:g} s"
    if limit.limit_s >= 60 and limit.limit_s % 60 == 0:
        given = f"{limit.limit_s / 60:g} min"
    return (
        f"{limit.what} of {given} ends this in {minutes}:{seconds:02d}, at {at}: then {limit.then}."
    )


HINT = (
    "Nothing stands still. If it takes longer than the time limit allows, have all ranks do that"
    " work, or allow more time: timeout= of the group, or disttrace.allow(minutes) on all ranks."
)
