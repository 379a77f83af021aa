"""The report on a folder of several jobs of one time, or of one that changes while it is read."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from disttrace_viewer.analysis.process_ends import MISSED_NS
from disttrace_viewer.diagnosis.report import healthy, job_of
from disttrace_viewer.evidence.evidence import Evidence
from disttrace_viewer.findings.case import Case
from disttrace_viewer.findings.finding import ERROR, NOTE, WARNING, Finding
from disttrace_viewer.wording.quantities import number

SEVERITIES = (ERROR, WARNING, NOTE)
"""In the order in which they are told."""
_LISTED = ("journals", "incomplete", "not_captured", "problems")
_COUNTED = ("dropped", "whole", "records")


@dataclass(frozen=True, slots=True)
class Other:
    """A job that lived while the one did that is shown, and the first that is wrong with it."""

    id: str
    processes: int
    healthy: bool
    first: Finding | None

    def to_dict(self) -> dict[str, Any]:
        """An element of ``others`` in ``stats --json`` and ``top --json``."""
        first = self.first
        return {
            "id": self.id,
            "processes": self.processes,
            "healthy": self.healthy,
            "kind": None if first is None else first.kind,
            "severity": None if first is None else first.severity,
            "certainty": None if first is None else first.certainty,
            "summary": None if first is None else first.summary,
        }

    @property
    def sentence(self) -> str:
        """Its name and the first finding, for whoever looks at another one."""
        who = f"Job {self.id} lived meanwhile ({number(self.processes, 'process', 'processes')})"
        if self.first is None:
            return f"{who}, with nothing wrong."
        return f"{who}: {self.first.severity} {self.first.kind}: {self.first.summary}"


def other(case: Case, findings: Sequence[Finding]) -> Other:
    """A job beside the one that is shown, by the verdict on it."""
    first = next((one for one in findings if one.severity != NOTE), None)
    trace = case.evidence.trace
    count = trace.count(range(len(trace.processes)))
    return Other(job_of(case).id, count, healthy(findings), first)


def combined(reports: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One report of the values of several (``diagnose --json``), that on the newest job first.

    Whatever is of one process or one finding says of which job it is. The rest, ``missing_ranks``
    too, is the newest job's; those of the others are in ``jobs``.
    """
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
    for name in _LISTED:
        found[name] = _once(one for part in parts for one in part[name])
    for name in _COUNTED:
        if any(name in part for part in parts):
            found[name] = sum(part.get(name, 0) for part in parts)
    found["clock_error_ns"] = max(part["clock_error_ns"] for part in parts)
    return found


def _once(values: Iterable[Any]) -> list[Any]:
    found: list[Any] = []
    texts: set[str] = set()
    for value in values:
        if not isinstance(value, str) or value not in texts:
            found.append(value)
            if isinstance(value, str):
                texts.add(value)
    return found


T = TypeVar("T")

MOST = 3
PAUSE_S = 0.2
RECENT_NS = 10_000_000_000


def settled(read: Callable[[], T], evidence_of: Callable[[T], Sequence[Evidence]]) -> T:
    """What ``read`` gives once everything that is broken in it broke before it began to read."""
    known: set[object] = set()
    found = read()
    for _ in range(MOST):
        broken = {one for evidence in evidence_of(found) for one in _just_broken(evidence)}
        if broken <= known:
            break
        known |= broken
        del found  # of a large job two do not fit
        time.sleep(PAUSE_S)
        found = read()
    return found


def _just_broken(evidence: Evidence) -> set[object]:
    """Ends of processes, and operations that ended badly, so shortly before the newest sign of life
    that a journal may have been read in between, if that sign is of now.
    """
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
