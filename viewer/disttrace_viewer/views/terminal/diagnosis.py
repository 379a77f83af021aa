"""The report for a terminal: findings first, then where everybody is, then details."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from disttrace_viewer.analysis.operation import frame
from disttrace_viewer.analysis.peer_addresses import words
from disttrace_viewer.diagnosis.report import NO_HISTORY, by_rank, coverage, healthy, state
from disttrace_viewer.findings.case import Case
from disttrace_viewer.findings.finding import ERROR, Finding
from disttrace_viewer.trace.model import Process
from disttrace_viewer.wording import sentences

CAVEATS = 8
"""Sentences about what is missing that are shown."""
MANY = 32
"""More processes than this are shown only where something is wrong with them."""


def lines(case: Case, findings: Sequence[Finding]) -> Iterator[str]:
    """The report, line by line."""
    yield from _caveats(case, findings)
    yield from _summaries(case, findings)
    yield ""
    yield from _where(case, findings)
    for number, finding in enumerate(findings, 1):
        yield from _details(number, finding)
    yield from _coverage(case)


def _caveats(case: Case, findings: Sequence[Finding]) -> Iterator[str]:
    """What is missing comes first: what follows may change with it."""
    if not case.incomplete:
        return
    yield (
        "Incomplete: not every journal of the job could be read in full, so this is no verdict on"
        " the whole of it."
        if healthy(findings)
        else "Not every journal of the job could be read in full; what follows holds all the same."
    )
    for sentence in case.incomplete[:CAVEATS]:
        yield f"  {sentence}"
    if len(case.incomplete) > CAVEATS:
        yield f"  ... and {len(case.incomplete) - CAVEATS} more"
    yield (
        "  What to do: collect these files again (whole, from all hosts, readable), and ask again."
    )
    yield ""


def _summaries(case: Case, findings: Sequence[Finding]) -> Iterator[str]:
    if not findings and case.incomplete:
        yield "No fault is certain from what the other journals hold."
    elif not findings:
        yield "Nothing is wrong: no fault was found in what the journals hold."
    for number, finding in enumerate(findings, 1):
        doubt = "" if finding.certainty == "certain" else ", likely"
        mark = finding.severity if finding.severity != ERROR else "ERROR"
        yield f"{number}. {mark} {finding.kind}{doubt}: {finding.summary}"


def _where(case: Case, findings: Sequence[Finding]) -> Iterator[str]:
    trace = case.evidence.trace
    shown = by_rank(trace.processes)
    if len(shown) > MANY:
        concerned = {i for f in findings for i in (*f.culprits, *f.waiting)}
        shown = [p for p in shown if p.index in concerned][:MANY]
    if shown:
        yield "Where everybody is:"
    for process in shown:
        yield f"  {process.label:<12} {state(case, process.index):<8} {_doing(case, process)}"
    left = len(trace.processes) - len(shown)
    if left:
        yield f"  and {left} more processes"


def _doing(case: Case, process: Process) -> str:
    evidence, trace = case.evidence, case.evidence.trace
    waits = case.of_process.get(process.index)
    if waits:
        op = waits[0].op
        where = frame(trace, op)
        at = "" if where is None else f" at {sentences.standing(where)}"
        age = sentences.span(evidence.age_ns(op))
        return f"in {sentences.operation(trace, op)} for {age}{at}"
    end = evidence.ends[process.index]
    if end.over:
        return words(evidence, process.index)
    standing = evidence.stands(process.index)
    if standing is not None:
        return f"outside communication, at {sentences.standing(standing)}"
    last = evidence.last.get(process.index)
    if last is None:
        return "no operation yet"
    done = "in" if last.pending else "last"
    return f"{done} {sentences.operation(trace, last)}{sentences.aside(frame(trace, last))}"


def _details(number: int, finding: Finding) -> Iterator[str]:
    if finding.hint is None and not finding.consequences and not finding.settles:
        return
    yield ""
    yield f"{number}. {finding.kind}"
    if finding.hint is not None:
        yield f"   What to do: {finding.hint}"
    if finding.settles:
        yield f"   To confirm: {sentences.listed(finding.settles)}"
    if finding.consequences:
        yield "   What follows from it:"
    for sentence in finding.consequences:
        yield f"   - {sentence}"


def _coverage(case: Case) -> Iterator[str]:
    found = coverage(case)
    trace = case.evidence.trace
    count = sum(case.evidence.sample.counts.values())
    yield ""
    yield (
        f"Read: {len(trace.processes)} journals, {count:,} operations of"
        f" {len(trace.jobs)} job{'s' if len(trace.jobs) != 1 else ''}."
    )
    if found["missing_ranks"]:
        yield f"No journal of {sentences.ranks(found['missing_ranks'])}."
    if found["dropped"]:
        yield f"{found['dropped']:,} old operations were dropped (DISTTRACE_MAX_MB)."
    if not case.evidence.columnar:
        yield NO_HISTORY
    yield from found["problems"]
    if found["other_jobs"]:
        yield f"Other jobs here: {', '.join(found['other_jobs'][:5])} (--job ID reads one)."
