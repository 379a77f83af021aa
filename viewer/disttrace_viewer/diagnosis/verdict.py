"""The judge, which alone calls the rules, and the verdict from merged states."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from disttrace_viewer.analysis.liveness import Look, look
from disttrace_viewer.diagnosis import consequences, doubt
from disttrace_viewer.diagnosis.report import healthy, report
from disttrace_viewer.evidence.evidence import Evidence
from disttrace_viewer.evidence.recorded import STALL_NS
from disttrace_viewer.findings.case import Case
from disttrace_viewer.findings.finding import ERROR, Finding
from disttrace_viewer.findings.past import NOTHING, Past
from disttrace_viewer.findings.rules import handled, lacking, left_over, waiting_for_input
from disttrace_viewer.findings.rules.divergence import traced_back
from disttrace_viewer.findings.rules.getting_on import eased
from disttrace_viewer.findings.rules.group_mismatch import by_names
from disttrace_viewer.findings.rules.table import RULES
from disttrace_viewer.findings.rules.tried_again import overcome
from disttrace_viewer.states.building import trace_of
from disttrace_viewer.states.merged import Merged
from disttrace_viewer.trace.model import Blame
from disttrace_viewer.trace.process import Problem


def judge(evidence: Evidence, past: Past = NOTHING) -> tuple[Case, tuple[Finding, ...]]:
    """The case and its findings, errors first; each carries its consequences as sentences.

    Where journals are lost, findings that these might contradict are left out, and
    ``Case.incomplete`` says what is missing.
    """
    case = Case(evidence, past=past)
    for rule in (*RULES, *past.rules):
        for finding in rule(case):
            _take(case, finding)
    found = left_over.traced_to(case, case.findings)
    case.findings = [overcome(case, traced_back(case, one)) for one in found]
    findings, case.incomplete = doubt.judged(case, consequences.fold(case))
    findings = tuple(lacking.worded(case, one) for one in findings)
    case.incomplete += lacking.what_stays_open(case, findings)
    return case, findings


def _take(case: Case, finding: Finding) -> None:
    finding = waiting_for_input.eased(case, eased(case, finding))
    found = lacking.tempered(case, finding)
    if found is not None:
        case.add(handled.told(case, by_names(case, found)))


@dataclass(frozen=True)
class Verdict:
    """Findings, errors first, and what they were found in."""

    case: Case
    findings: tuple[Finding, ...]
    bases: tuple[str, ...] = ()
    """The paths of journals without their suffixes."""

    @property
    def healthy(self) -> bool:
        """Whether there is neither an error nor a warning."""
        return healthy(self.findings)

    @property
    def incomplete(self) -> tuple[str, ...]:
        """What is missing of the job's journals, as sentences; none: the verdict rests on all."""
        return self.case.incomplete

    @property
    def blame(self) -> Blame:
        """By whom waiting that never ended was caused: the one table of it."""
        known = {id(one.scope): one.culprits for one in self.findings}
        of: dict[int, tuple[int, ...]] = {}
        for wait, number in self.case.owner.items():
            culprits = known.get(id(self.case.findings[number].scope), ())
            of.update({wait.process: culprits} if culprits else {})
        errors = [one for one in self.findings if one.severity == ERROR]
        of.update(
            {p: one.culprits for one in reversed(errors) if one.culprits for p in one.waiting}
        )
        where = {at.process: at for one in reversed(errors) for at in reversed(one.locations)}
        return Blame(of, {p: f"{at.file}:{at.line}" for p, at in where.items()})

    def to_dict(self) -> dict[str, Any]:
        """The report of ``diagnose --json``."""
        return report(self.case, self.findings)

    def looking_back(self, past: Past) -> Verdict:
        """The verdict with what is over looked at as well."""
        return Verdict(*judge(self.case.evidence, past), bases=self.bases)


def verdict(
    merged: Merged,
    *,
    only: Collection[str] | None = None,
    stall_ns: int = STALL_NS,
    look: Look = look,
    problems: Sequence[Problem] = (),
) -> Verdict:
    """What is wrong with some processes (by id; default: all), as far as their states tell.

    What needs history is left out, and the report says so. A finding is certain only if the
    journals of those concerned were read in full for their states.
    """
    unfinished, bases = merged.partial, merged.survey.paths
    trace, sample = trace_of(merged, only=only, more=problems)
    partial = frozenset(i for i, p in enumerate(trace.processes) if p.id in unfinished)
    evidence = Evidence(trace, sample, stall_ns=stall_ns, look=look, partial=partial)
    return Verdict(*judge(evidence), bases=bases)
