"""The evidence of a trace that was read with tables of all its operations, and its findings."""

from __future__ import annotations

from disttrace_viewer.analysis.evidence import STALL_NS, Evidence
from disttrace_viewer.analysis.exchanges import Exchanges
from disttrace_viewer.analysis.liveness import Look, look
from disttrace_viewer.diagnosis.judge import judge
from disttrace_viewer.findings.case import Case
from disttrace_viewer.findings.finding import Finding
from disttrace_viewer.sample.of_table import sample_of
from disttrace_viewer.trace.model import Trace


def evidence_of(
    trace: Trace,
    exchanges: Exchanges | None = None,
    *,
    stall_ns: int = STALL_NS,
    look: Look = look,
) -> Evidence:
    """What the rules look at; ``exchanges`` are those of the trace, where they are at hand."""
    tables = exchanges or Exchanges(trace)
    return Evidence(trace, sample_of(trace), tables, stall_ns=stall_ns, look=look)


def diagnose(
    trace: Trace,
    exchanges: Exchanges | None = None,
    *,
    stall_ns: int = STALL_NS,
    look: Look = look,
) -> tuple[Case, tuple[Finding, ...]]:
    """As ``judge``, of a trace with tables."""
    return judge(evidence_of(trace, exchanges, stall_ns=stall_ns, look=look))
