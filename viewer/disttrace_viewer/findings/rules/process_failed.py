"""A process failed or vanished, and others depend on it: the first failure, not its echoes."""

from __future__ import annotations

import os
from collections.abc import Iterator

from disttrace_viewer.analysis.operation import innermost
from disttrace_viewer.analysis.process_ends import MISSED_NS, OWN, SILENT, TOGETHER_NS, words
from disttrace_viewer.findings.case import Case
from disttrace_viewer.findings.finding import CERTAIN, LIKELY, Finding, Scope
from disttrace_viewer.trace.model import Location
from disttrace_viewer.wording import sentences


def find(case: Case) -> Iterator[Finding]:
    """The first failure of its own; failures of the same type and line are one finding.

    Others that fail by themselves later are findings of their own unless they followed from this.
    """
    left = [p for p in case.own_failures() if _counts(case, p)]
    gone = [p for p in _gone(case) if p not in case.ends]
    order = sorted(left + gone, key=lambda p: case.evidence.ends[p].t_ns)
    while order:
        first = order[0]
        alike = [p for p in order if _signature(case, p) == _signature(case, first)]
        yield _finding(case, first, alike)
        order = [p for p in order if p not in alike and p not in case.ends]


def _counts(case: Case, process: int) -> bool:
    """An agent fails because its workers did, a parent because its children did."""
    trace = case.evidence.trace
    mine = trace.processes[process]
    children = {p.index for p in trace.processes if p.parent == mine.id}
    return not any(
        case.evidence.ends[c].how in ("own", "echo", SILENT)
        and case.evidence.ends[c].t_ns <= case.evidence.ends[process].t_ns
        for c in children
    )


def _launchers(case: Case, processes: list[int]) -> frozenset[int]:
    """The failed agents and parents of some processes: theirs is what follows."""
    trace = case.evidence.trace
    parents = {trace.processes[p].parent for p in processes}
    return frozenset(
        p.index
        for p in trace.processes
        if p.id in parents and case.evidence.ends[p.index].how == OWN
    )


def _signature(case: Case, process: int) -> object:
    end = case.evidence.ends[process]
    where = innermost(end.asked_at if end.failure is None else end.failure.stack)
    if end.failure is None:
        return process if where is None else (end.code, where.file, where.line)
    return (end.failure.type, where and (where.file, where.line))


def _gone(case: Case) -> list[int]:
    """Processes that fell silent while others went on, and were not waiting themselves."""
    evidence = case.evidence
    silent = [i for i, end in enumerate(evidence.ends) if end.how == SILENT]
    found = []
    for process in silent:
        if evidence.ends[process].told_to_end or not case.outside(process):
            continue
        if evidence.trace.processes[process].role == "agent":
            continue
        at = evidence.ends[process].t_ns
        together = [
            other
            for other in silent
            if other != process and abs(evidence.ends[other].t_ns - at) <= TOGETHER_NS
        ]
        outlived = evidence.cut_ns - at > MISSED_NS or evidence.alive_here
        noticed = any(p != process and t >= at for p, t in evidence.echo_times)
        if together and not (outlived and _survivor(case, process, together)):
            continue  # ended from outside, all at one time: what stood before is the verdict
        if not (noticed or outlived) or _awaited_before(case, process):
            continue
        found.append(process)
    return found


def _survivor(case: Case, process: int, together: list[int]) -> bool:
    """Whether a member of one of its groups went on for long after them."""
    evidence = case.evidence
    gone = {process, *together}
    peers = {
        m.process
        for g in evidence.trace.groups
        for m in g.members
        if any(n.process == process for n in g.members)
    }
    at = evidence.ends[process].t_ns
    return any(
        evidence.until_ns(p) - at > MISSED_NS or not evidence.ends[p].over for p in peers - gone
    )


def _awaited_before(case: Case, process: int) -> bool:
    """Whether others had been waiting for it for so long that its end changed nothing."""
    evidence = case.evidence
    at = evidence.ends[process].t_ns
    return any(
        process in wait.targets
        and wait.process != process
        and at - evidence.since_ns(wait.op) >= evidence.stall_ns
        for wait in case.waits
    )


def _finding(case: Case, first: int, alike: list[int]) -> Finding:
    evidence, trace = case.evidence, case.evidence.trace
    end = evidence.ends[first]
    where = evidence.whereabouts(first)
    last = evidence.last.get(first)
    text = sentences.processes(trace, alike)
    text = text[0].upper() + text[1:]
    known = end.failure is not None or end.asked_at
    at = f" at {_place(where)}" if known and where is not None else ""
    before = f", after {sentences.operation(trace, last)}" if last is not None else ""
    if end.failure is not None:
        before = ""
    silent = end.how == SILENT and end.code is None
    noticed = any(p not in alike and t >= end.t_ns for p, t in evidence.echo_times)
    sure = not silent or noticed or end.known_dead
    return Finding(
        kind="process_failed",
        summary=f"{text} {words(end)}{at}{before}.",
        certainty=CERTAIN if sure else LIKELY,
        hint=_hint(case, first),
        culprits=tuple(alike),
        op=None if last is None else last.call.op,
        locations=tuple(place for p in alike if (place := evidence.whereabouts(p)) is not None),
        at_ns=end.t_ns,
        scope=Scope(roots=frozenset(alike), members=_launchers(case, alike)),
    )


def _place(where: Location) -> str:
    return f"{os.path.basename(where.file)}:{where.line} in {where.function}"


def _hint(case: Case, process: int) -> str:
    end = case.evidence.ends[process]
    if end.failure is not None:
        return "Read this exception first; what the other ranks report follows from it."
    if (end.code is not None and end.code < 0) or end.how == SILENT:
        return (
            "Look for the kernel's out-of-memory killer (dmesg), a scheduler's limit, or a crash in"
            " C code (run with PYTHONFAULTHANDLER=1)."
        )
    return "Find who calls exit there; the other ranks were still at work."
