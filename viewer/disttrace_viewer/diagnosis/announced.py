"""What a job reported of itself, and the law on it: the finding with more evidence stays the first.

While a job runs more is known than its journals hold later: kernels answer for its processes, and
hosts for theirs. So what it reported of a fault, and has not taken back, stands before findings
that rest on less.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import orjson

from disttrace_viewer.analysis.process_ends import MISSED_NS
from disttrace_viewer.diagnosis.report import finding as as_values
from disttrace_viewer.diagnosis.report import healthy, job_of
from disttrace_viewer.diagnosis.verdict import Verdict
from disttrace_viewer.evidence.evidence import Evidence
from disttrace_viewer.findings.case import Case
from disttrace_viewer.findings.finding import CERTAIN, ERROR, KINDS, NOTE, SEVERITIES, RuleFinding
from disttrace_viewer.load.announcements import MOST, announced
from disttrace_viewer.trace.model import CodeLocation, JobTrace
from disttrace_viewer.trace.operation import GROUPED
from disttrace_viewer.trace.values import dataclass, replace
from disttrace_viewer.wording.names import number
from disttrace_viewer.wording.sentences import AT_THE_TIME

STALLED, DIVERGED, GOING_ON, FAILED = "stalled", "diverged", "going on", "failed"
_FAULTS = (STALLED, DIVERGED, FAILED)


def with_announced(found: Verdict) -> Verdict:
    """The verdict with what its job reported, whose fault comes first where less is known now."""
    case = found.case
    case.said = announced_beside(found.bases, case.trace)
    one = standing(case.said)
    if one is None:
        return found
    reported, sure = _finding(case, one), one["finding"].get("certainty") == CERTAIN
    same = next((f for f in found.findings if _same(f, reported)), None)
    errors = [f for f in found.findings if f.severity == ERROR]
    after = [f for f in errors if _follows(f, reported)] if sure else []
    if same is not None and _as_much(same, reported):
        findings = [replace(f, said_at=one["at"]) if f is same else f for f in found.findings]
    elif same is None and (
        _resolved(case, reported, one["at"])
        or (errors and not sure)
        or (errors and errors[0].certainty == CERTAIN and not case.incomplete and not after)
    ):
        return found
    else:
        follows = same.consequences if same else tuple(f.summary for f in after)
        rest = [f for f in found.findings if f not in (same, *after) and not _less(f, reported)]
        findings = [replace(reported, consequences=follows), *rest]
    return replace(found, findings=tuple(findings))


def standing(before: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """The first fault that a job reported and has not taken back, a certain one before others."""
    found: list[Mapping[str, Any]] = []
    for one in before:
        if one.get("kind") == GOING_ON:
            found = []
        elif one.get("kind") in _FAULTS and (not found or one["at"] != found[-1]["at"]):
            found.append(one)  # what a picture begins with, and not what came beside it
    found = [one for one in found if _is_finding(one.get("finding"))]
    sure = [one for one in found if one["finding"].get("certainty") == CERTAIN]
    return {**(sure or found)[0]} if found else None


def _is_finding(value: object) -> bool:
    """Whether it is a fault in the form of ``diagnose --json``: such a file may be a stranger's."""
    return (
        isinstance(value, dict)
        and value.get("kind") in KINDS
        and (value.get("severity"), type(value.get("summary"))) == (ERROR, str)
        and all(
            isinstance(value.get(name), list) and all(isinstance(one, kind) for one in value[name])
            for name, kind in _LISTS.items()
        )
    )


_LISTS = {"culprits": str, "waiting": str, "culprit_ranks": int, "locations": dict}


def _finding(case: Case, one: Mapping[str, Any]) -> RuleFinding:
    """What was reported, in terms of the processes that were read."""
    values, trace = one["finding"], case.trace
    known = {p.id: p.index for p in trace.processes}
    culprits = tuple(known[i] for i in values["culprits"] if i in known)
    waiting = tuple(known[i] for i in values["waiting"] if i in known)
    blank = RuleFinding(values["kind"], values["summary"])
    return RuleFinding(
        kind=values["kind"],
        summary=one["summary"],
        because=tuple(values.get("because") or (AT_THE_TIME,))
        if values.get("certainty") != CERTAIN
        else (),
        **{name: values.get(name) for name in ("hint", "op", "group", "seq")},
        culprits=culprits,
        absent_ranks=tuple({*values["culprit_ranks"]} - {*trace.ranks_of(culprits)}),
        waiting=waiting,
        locations=tuple(
            CodeLocation(known[w["process"]], w["file"], w["line"], w["function"], w.get("op"))
            for w in values["locations"]
            if w.get("process") in known
        ),
        at_ns=round(one["at"] * 1e9),
        said_at=one["at"],
        values={**as_values(case, blank), **values, "summary": one["summary"]},
    )


def _same(one: RuleFinding, reported: RuleFinding) -> bool:
    """Whether both are about one fault."""
    where = (one.kind, one.group, one.seq) == (reported.kind, reported.group, reported.seq)
    who = (*one.culprits, *one.absent_ranks) == (*reported.culprits, *reported.absent_ranks)
    return where or (one.kind == reported.kind and who)


def _as_much(one: RuleFinding, reported: RuleFinding) -> bool:
    """Whether it is as certain as what was reported, and states as well where the culprits were."""
    lines = {(w.file, w.line) for w in reported.locations if w.process in reported.culprits}
    known = lines <= {(w.file, w.line) for w in one.locations}
    return reported.certainty != CERTAIN or (one.certainty == CERTAIN and known)


def _follows(one: RuleFinding, reported: RuleFinding) -> bool:
    """Whether it is how ranks ended that waited there; how the absent one did may be the cause."""
    failed = one.kind == "process_failed" and not {*one.culprits} <= {*reported.culprits}
    return failed and not {*one.culprits}.isdisjoint(reported.waiting)


def _less(one: RuleFinding, reported: RuleFinding) -> bool:
    """Whether it is about processes of the fault, and rests on less."""
    mine = {*one.culprits, *one.waiting}
    of_it = not mine or not mine.isdisjoint({*reported.culprits, *reported.waiting})
    return one.severity != NOTE and one.certainty != CERTAIN and of_it


def _resolved(case: Case, reported: RuleFinding, at: float) -> bool:
    """Whether a process that waited got through with it, or communicated since."""
    groups = {one.id: one.index for one in case.trace.groups}
    group = groups.get(reported.group or "")
    for process in reported.waiting:
        for op in case.sample.of_process.get(process, ()):
            through = op.call.kind in GROUPED and op.status == "ok"
            if reported.seq is not None and op.call.group == group and op.seq is not None:
                through = op.status == "ok" and op.seq >= reported.seq
            elif op.end_ns is None or op.end_ns < at * 1e9:
                through = False
            if through:
                return True
    return False


def announced_beside(bases: Iterable[str], trace: JobTrace) -> tuple[dict[str, Any], ...]:
    """What was kept of the jobs of ``trace`` beside its journals, or what their log tells, oldest
    first.

    Jobs of one name share a file: a verdict is of the job whose processes it names, else of the
    launch that was the newest one then.
    """
    where = {os.path.dirname(base) for base in bases}
    rows = (row for one in trace.processes for row in one.reports if row["kind"] == "said")
    found = {orjson.dumps(row["said"]): dict(row["said"]) for row in rows}
    for name in sorted({name for job in trace.jobs for name in job.names}):
        launches = [job for job in (*trace.jobs, *trace.other_jobs) if name in job.names]
        launches.sort(key=lambda job: job.start_ns)
        for one in announced(where, [name]):
            before = [job for job in launches if job.start_ns <= one["at"] * 1e9]
            speaker = before[-1] if before else launches[0]
            of_other = _names(one, trace.of_others)
            if _names(one, trace.by_id) or (speaker in trace.jobs and not of_other):
                found[orjson.dumps(one)] = one
    return tuple(sorted(found.values(), key=lambda one: float(one["at"]))[-MOST:])


def _names(one: Mapping[str, Any], processes: Container[str]) -> bool:
    """Whether one of these judged it, or it is about one of them."""
    finding = one.get("finding")
    about = finding if isinstance(finding, dict) else {}
    named = [[one.get("process")], about.get("culprits"), about.get("waiting")]
    return any(i in processes for ids in named if isinstance(ids, list) for i in map(str, ids))


@dataclass(frozen=True, slots=True)
class Other:
    """A job that lived while the one did that is shown, and the first that is wrong with it."""

    id: str
    processes: int
    healthy: bool
    first: RuleFinding | None

    def to_dict(self) -> dict[str, Any]:
        """An element of ``others`` in ``stats --json`` and ``top --json``."""
        about = ("kind", "severity", "certainty", "summary")
        return {
            **{name: getattr(self, name) for name in ("id", "processes", "healthy")},
            **{name: getattr(self.first, name, None) for name in about},
        }

    @property
    def sentence(self) -> str:
        """Its name and the first finding, for the one that looks at another one."""
        who = f"Job {self.id} lived meanwhile ({number(self.processes, 'process', 'processes')})"
        if self.first is None:
            return f"{who}, with nothing wrong."
        return f"{who}: {self.first.severity} {self.first.kind}: {self.first.summary}"


def other(case: Case, findings: Sequence[RuleFinding]) -> Other:
    """A job beside the one that is shown, by the verdict on it."""
    first = next((one for one in findings if one.severity != NOTE), None)
    count = case.trace.count(range(len(case.trace.processes)))
    return Other(job_of(case).id, count, healthy(findings), first)


def combined(reports: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One report of the values of several (``diagnose --json``), that on the newest job first; the
    rest is the newest job's, and in ``jobs`` each one's."""
    first, *others = reports
    if not others:
        return dict(first)
    findings = [one for report in reports for one in report["findings"]]
    found = {
        **first,
        "healthy": all(report["healthy"] for report in reports),
        "evidence": sorted({one for report in reports for one in report["evidence"]}),
        "processes": [one for report in reports for one in report["processes"]],
        "findings": sorted(findings, key=lambda one: SEVERITIES.index(one["severity"])),
        "jobs": [one for report in reports for one in report["jobs"]],
        "said": sorted((one for r in reports for one in r["said"]), key=lambda one: one["at"]),
        "coverage": _coverage([report["coverage"] for report in reports]),
    }
    if any(report.get("folded") for report in reports):
        found["folded"] = True
    return found


def _coverage(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    found = dict(parts[0])
    found["journals"] = [one for part in parts for one in part["journals"]]
    for name in ("incomplete", "not_captured", "problems"):
        found[name] = list(dict.fromkeys(one for part in parts for one in part[name]))
    for name in ("dropped", "whole", "records"):
        if any(name in part for part in parts):
            found[name] = sum(part.get(name, 0) for part in parts)
    found["clock_error_ns"] = max(part["clock_error_ns"] for part in parts)
    return found


T = TypeVar("T")

TRIES = 3
PAUSE_S = 0.2
RECENT_NS = 10_000_000_000


def settled(read: Callable[[], T], evidence_of: Callable[[T], Sequence[Evidence]]) -> T:
    """What ``read`` gives once everything that is broken in it broke before it began to read."""
    known: set[object] = set()
    found = read()
    for _ in range(TRIES):
        broken = {one for evidence in evidence_of(found) for one in _just_broken(evidence)}
        if broken <= known:
            break
        known |= broken
        del found  # of a large job two do not fit
        time.sleep(PAUSE_S)
        found = read()
    return found


def _just_broken(evidence: Evidence) -> set[object]:
    """What ended, or ended badly, so shortly before now that journals were read in between."""
    whole = all(end.exit_word is not None for end in evidence.ends)  # nothing follows that record
    if whole or time.time_ns() - evidence.cut_ns > RECENT_NS:
        return set()
    processes = evidence.trace.processes
    since_ns = evidence.cut_ns - MISSED_NS
    found: set[object] = {
        processes[i].id for i, end in enumerate(evidence.ends) if end.over and end.t_ns > since_ns
    }
    return found | {
        (processes[op.process].id, op.number)
        for failed in evidence.failed.values()
        for op in failed
        if (op.end_ns or 0) > since_ns
    }
