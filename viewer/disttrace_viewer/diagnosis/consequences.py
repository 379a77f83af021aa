"""Folding: every wait, error and end that a finding explains becomes a sentence under it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TypeVar

from disttrace_viewer.analysis.operation import frame
from disttrace_viewer.analysis.process_ends import CLEAN
from disttrace_viewer.evidence.peer_addresses import end_of
from disttrace_viewer.evidence.waits.wait import Wait
from disttrace_viewer.findings.case import Case
from disttrace_viewer.findings.finding import ERROR, NOTE, WARNING, Finding
from disttrace_viewer.findings.rules.tried_again import attempts
from disttrace_viewer.trace.model import Trace
from disttrace_viewer.trace.operation import Op
from disttrace_viewer.wording import quantities, sentences
from disttrace_viewer.wording.sentences import ended as how_ended
from disttrace_viewer.wording.sentences import pattern
from disttrace_viewer.wording.sentences import raised as how_is_raised

Explained = TypeVar("Explained", Wait, int)
_ORDER = {ERROR: 0, WARNING: 1, NOTE: 2}


def fold(case: Case) -> tuple[Finding, ...]:
    """All findings with their consequences, errors first, then in the order of the rules; what an
    attempt failed of that its launcher repeated comes behind what became of the last one.
    """
    waits, ends = _by_owner(case.owner), _by_owner(case.ends)
    folded = []
    for number, finding in enumerate(case.findings):
        mine = waits.get(number, [])
        # Who waits because of a finding that names nobody itself.
        held = tuple(sorted({wait.process for wait in mine} - set(finding.culprits)))
        told = _sentences(case, finding, mine, ends.get(number, []))
        told += _uncaught(case, finding, (*finding.consequences, *told))
        folded.append(
            replace(
                finding,
                waiting=finding.waiting or held,
                consequences=(*finding.consequences, *told),
            )
        )
    return tuple(
        sorted(folded, key=lambda f: (_ORDER[f.severity], attempts(case, f)[1] is not None))
    )


def _by_owner(owners: Mapping[Explained, int]) -> dict[int, list[Explained]]:
    found: dict[int, list[Explained]] = {}
    for explained, owner in owners.items():
        found.setdefault(owner, []).append(explained)
    return found


def _sentences(
    case: Case, finding: Finding, explained: Iterable[Wait], ends: Iterable[int]
) -> list[str]:
    trace, evidence = case.evidence.trace, case.evidence
    waits: dict[tuple[bool, str], list[int]] = {}
    groups: dict[str, int | None] = {}
    alike: list[Op] = []
    for wait in explained:
        if wait.exchange in finding.scope.exchanges:
            continue
        if wait.process in finding.waiting and finding.kind != "process_failed":
            continue
        if (wait.stream, wait.op.seq) == finding.scope.stream:
            continue  # the finding tells of it
        if wait.process in finding.waiting and not finding.culprits:
            continue
        over = wait.op.error is not None or evidence.ends[wait.process].over
        what = f"{sentences.operation(trace, wait.op)}{sentences.aside(frame(wait.op))}"
        waits.setdefault((over, what), []).append(wait.process)
        groups[what] = wait.op.call.group
        alike.append(wait.op)
    told = [
        f"{sentences.subject(trace, who, within=groups[what])}"
        f" {'waited' if over else 'wait' if len(who) > 1 else 'waits'} in {what}."
        for (over, what), who in waits.items()
    ]
    told += _in_more_groups(trace, alike)
    ended: dict[str, list[int]] = {}
    for process in ends:
        end = evidence.ends[process]
        if process in case.cut_off:
            continue  # ended from outside when all was over: no consequence of anything here
        nobody = finding.kind == "process_failed" and not finding.culprits
        if nobody and process in finding.waiting:
            continue  # the finding is about them
        if process not in finding.culprits and end.how != CLEAN:
            ended.setdefault(pattern(end_of(evidence, process)), []).append(process)
    told += [
        f"{_who(case, who)} {how_ended(end_of(evidence, who[0]), many=len(who) > 1)}."
        for who in ended.values()
    ]
    return told


def _in_more_groups(trace: Trace, ops: Iterable[Op]) -> list[str]:
    """Ranks that were reported to wait as some do, in other groups of that make."""
    found: dict[tuple[str, str], tuple[list[int], int]] = {}
    for op in ops:
        for one in trace.reported_by.get(op.process, ()):
            if one.groups > 0 and one.group == op.call.group:
                what = sentences.called(op) + (f" #{op.seq}" if op.seq is not None else "")
                kind = f" ({desc})" if (desc := trace.groups[one.group].desc) else ""
                ranks, groups = found.get((what, kind), ([], 0))
                found[what, kind] = ([*ranks, *one.ranks], groups + one.groups)
    return [
        f"{sentences.capital(sentences.ranks(ranks))} wait in {what} of"
        f" {quantities.number(groups, 'more group', 'more groups')}{kind}."
        for (what, kind), (ranks, groups) in found.items()
    ]


def _uncaught(case: Case, finding: Finding, told: Iterable[str]) -> list[str]:
    """The exceptions that nobody caught of processes that a finding names, where neither it nor
    what follows from it quotes them (or one that differs by its numbers, a rank or a batch): they
    may be what is to be read first.
    """
    quoted = " ".join((finding.summary, *told))
    raised: dict[str, list[int]] = {}
    known = set[str]()
    for process in dict.fromkeys((*finding.culprits, *finding.waiting)):
        end = end_of(case.evidence, process)
        if end.failure is not None and not end.interrupted:
            raised.setdefault(pattern(end), []).append(process)
            if how_is_raised(end.failure) in quoted:
                known.add(pattern(end))
    return [
        f"{_who(case, who)} {how_ended(end_of(case.evidence, who[0]))}."
        for like, who in raised.items()
        if like not in known
    ]


def _who(case: Case, processes: list[int]) -> str:
    return sentences.subject(case.evidence.trace, processes)
