"""The one way to findings: all rules in order, and what follows from a finding folded into it."""

from __future__ import annotations

from disttrace_viewer.diagnosis import consequences, doubt
from disttrace_viewer.evidence.evidence import Evidence
from disttrace_viewer.findings.case import Case
from disttrace_viewer.findings.finding import Finding
from disttrace_viewer.findings.past import NOTHING, Past
from disttrace_viewer.findings.rules import handled, lacking, left_over
from disttrace_viewer.findings.rules.divergence import traced_back
from disttrace_viewer.findings.rules.getting_on import eased
from disttrace_viewer.findings.rules.table import RULES
from disttrace_viewer.findings.rules.tried_again import overcome


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
    case.incomplete += lacking.sentences(case, findings)
    return case, findings


def _take(case: Case, finding: Finding) -> None:
    found = lacking.tempered(case, eased(case, finding))
    if found is not None:
        case.add(handled.told(case, found))
