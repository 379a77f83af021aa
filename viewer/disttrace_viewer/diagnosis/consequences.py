"""Folding: every wait, error and end that a finding explains becomes a sentence under it."""

from __future__ import annotations

from dataclasses import replace

from disttrace_viewer.analysis.operation import frame
from disttrace_viewer.analysis.peer_addresses import end_of
from disttrace_viewer.analysis.process_ends import CLEAN
from disttrace_viewer.findings.case import Case
from disttrace_viewer.findings.finding import ERROR, NOTE, WARNING, Finding
from disttrace_viewer.wording import sentences
from disttrace_viewer.wording.ends import ended as how_ended

_ORDER = {ERROR: 0, WARNING: 1, NOTE: 2}


def fold(case: Case) -> tuple[Finding, ...]:
    """All findings with their consequences, errors first, then in the order of the rules."""
    folded = [
        replace(
            finding,
            waiting=finding.waiting or _waiting(case, number, finding),
            consequences=(*finding.consequences, *_sentences(case, number, finding)),
        )
        for number, finding in enumerate(case.findings)
    ]
    return tuple(sorted(folded, key=lambda f: _ORDER[f.severity]))


def _waiting(case: Case, number: int, finding: Finding) -> tuple[int, ...]:
    """Who waits because of a finding that names nobody itself."""
    found = {wait.process for wait, owner in case.owner.items() if owner == number}
    return tuple(sorted(found - set(finding.culprits)))


def _sentences(case: Case, number: int, finding: Finding) -> list[str]:
    trace, evidence = case.evidence.trace, case.evidence
    waits: dict[tuple[bool, str], list[int]] = {}
    for wait, owner in case.owner.items():
        if owner != number or wait.exchange in finding.scope.exchanges:
            continue
        if wait.process in finding.waiting and finding.kind != "process_failed":
            continue
        if (wait.stream, wait.op.seq) in finding.scope.streams:
            continue  # the finding tells of it
        if wait.process in finding.waiting and not finding.culprits:
            continue
        over = wait.op.error is not None or evidence.ends[wait.process].over
        what = f"{sentences.operation(trace, wait.op)}{sentences.aside(frame(trace, wait.op))}"
        waits.setdefault((over, what), []).append(wait.process)
    told = [
        f"{_who(case, who)} {'waited' if over else 'wait' if len(who) > 1 else 'waits'} in {what}."
        for (over, what), who in waits.items()
    ]
    ended: dict[str, list[int]] = {}
    for process, owner in case.ends.items():
        end = evidence.ends[process]
        if process in case.cut_off:
            continue  # ended from outside when all was over: no consequence of anything here
        nobody = finding.kind == "process_failed" and not finding.culprits
        if nobody and process in finding.waiting:
            continue  # the finding is about them
        if owner == number and process not in finding.culprits and end.how != CLEAN:
            ended.setdefault(how_ended(end_of(evidence, process)), []).append(process)
    told += [
        f"{_who(case, who)} {how_ended(end_of(evidence, who[0]), many=len(who) > 1)}."
        for who in ended.values()
    ]
    return told


def _who(case: Case, processes: list[int]) -> str:
    return sentences.subject(case.evidence.trace, processes)
