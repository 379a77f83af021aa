"""Applies the rules to a trace and folds what follows from a finding into it."""

from __future__ import annotations

from disttrace_viewer.analysis.evidence import STALL_NS, Evidence
from disttrace_viewer.analysis.liveness import Look, look
from disttrace_viewer.diagnosis import consequences, doubt
from disttrace_viewer.findings.case import Case
from disttrace_viewer.findings.finding import Finding
from disttrace_viewer.findings.rules.getting_on import eased
from disttrace_viewer.findings.rules.table import RULES
from disttrace_viewer.trace.model import Trace


def diagnose(
    trace: Trace, *, stall_ns: int = STALL_NS, look: Look = look
) -> tuple[Case, tuple[Finding, ...]]:
    """The case and its findings, errors first; each carries its consequences as sentences.

    Where journals are lost, findings that these might contradict are left out, and
    ``Case.incomplete`` says what is missing.
    """
    from disttrace_viewer.analysis.exchanges import Exchanges  # needs Polars

    return judge(Evidence(trace, Exchanges(trace), stall_ns=stall_ns, look=look))


def judge(evidence: Evidence) -> tuple[Case, tuple[Finding, ...]]:
    """As ``diagnose``, of any evidence."""
    case = Case(evidence, history=evidence.columnar)
    for rule in RULES:
        for finding in rule(case):
            case.add(eased(case, finding))
    findings, case.incomplete = doubt.judged(case, consequences.fold(case))
    return case, findings
