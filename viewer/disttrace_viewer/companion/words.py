"""What is said of a stall: who waits and is missing, in ten lines, and by whom."""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import Any

from disttrace_viewer.analysis.node_rendezvous import AGENT
from disttrace_viewer.analysis.operation import frame
from disttrace_viewer.analysis.process_ends import ALIVE, TOGETHER_NS
from disttrace_viewer.diagnosis.positions import positions
from disttrace_viewer.findings.case import Case
from disttrace_viewer.findings.finding import LIKELY, Finding
from disttrace_viewer.trace.model import Process
from disttrace_viewer.wording import sentences

MOST_FINDINGS = 3
MOST_POSITIONS = 4
HABIT = 2
"""Who has waited at a place for so long before is given as many times that."""
LONGEST_LINE = 400
ASKS = -1
"""In place of an operation's number where one waits by asking, each time in another one."""


def habitual(case: Case, finding: Finding) -> bool:
    """Whether all who wait have waited at that place for about as long before: a checkpoint.

    Who gave up, however soon, does not wait any more.
    """
    waits = [case.of_process[p][0] for p in finding.waiting if case.of_process.get(p)]
    return bool(waits) and all(
        w.op.error is None and case.evidence.age_ns(w.op) < HABIT * case.evidence.longest_ns(w.op)
        for w in waits
    )


def who_waits(case: Case, unknown: Sequence[int]) -> list[Finding]:
    """Who has waited for the limit, where nobody can say for whom: no accusation."""
    evidence, trace = case.evidence, case.evidence.trace
    waiting = [w for w in case.waits if not w.side and w.late_ns is None and case.old(w)]
    old = sorted(waiting, key=lambda wait: wait.op.begin_ns)
    if not old:
        return []
    first = old[0]
    alike = [w for w in old if w.op.call.op == first.op.call.op and w.op.seq == first.op.seq]
    who = sorted({w.process for w in alike})
    where = frame(first.op)
    at = "" if where is None else f" at {sentences.is_at(where)}"
    group = None if first.op.call.group is None else trace.groups[first.op.call.group]
    members = None if group is None else group.ranks
    missing = [r for r in unknown if members is None or r in members] or unknown
    age = sentences.span(max(evidence.age_ns(w.op) for w in alike))
    finding = Finding(
        kind="no_progress",
        certainty=LIKELY,
        summary=f"{sentences.have_been(trace, who)} waiting in"
        f" {sentences.operation(trace, first.op)}{at} for {age}; {sentences.ranks(missing)} may be"
        " missing there.",
        waiting=tuple(who),
        group=None if group is None else group.id,
        seq=first.op.seq,
    )
    return [finding]


def stalled(case: Case, errors: Sequence[Finding]) -> list[list[Any]]:
    """[process id, operation number] of the waits that findings are about."""
    processes = case.evidence.trace.processes
    found = {i for finding in errors for i in finding.waiting}
    return [
        [processes[w.process].id, ASKS if w.polled else w.op.number]
        for w in case.waits
        if w.process in found and (w.polled or w in case.of_process.get(w.process, ()))
    ]


def lines(case: Case, found: list[Finding], directory: str, *, word: str = "stalled") -> list[str]:
    """At most ten lines, whatever the number of ranks. ``word``: what all of it is."""
    if not found:
        return []
    said = [f"{word}{_marked(found[0])}" if word == "stalled" else f"{word}: {found[0].summary}"]
    said += [f"also{_marked(finding)}" for finding in found[1:MOST_FINDINGS]]
    if len(found) > MOST_FINDINGS:
        said.append(f"and {len(found) - MOST_FINDINGS} more findings")
    where = positions(case, found)
    said += [f"  {line}" for line in where[:MOST_POSITIONS]]
    if len(where) > MOST_POSITIONS:
        said.append(f"  and {len(where) - MOST_POSITIONS} more places")
    if found[0].hint is not None:
        said.append(found[0].hint)
    said.append(f"more: disttrace diagnose {directory}")
    return [
        line if len(line) <= LONGEST_LINE else f"{line[: LONGEST_LINE - 3]}..." for line in said
    ]


def _marked(finding: Finding) -> str:
    return f"{' (likely)' if finding.certainty == LIKELY else ''}: {finding.summary}"


def living(case: Case) -> list[Process]:
    """Processes that run, as far as anybody knows."""
    ends = case.evidence.ends
    return [
        p
        for p in case.evidence.trace.processes
        if ends[p.index].how == ALIVE or ends[p.index].lingers
    ]


def voices(case: Case, elsewhere: Set[str], *, anywhere: bool) -> list[str]:
    """Who may speak: torchrun's agent, else the lowest rank; last those in which nothing runs now.

    Nobody if that is on another host, unless there is no telling (``anywhere``): of the companions
    who ask each other only the one that leads gets this far.
    """
    evidence = case.evidence
    ends = evidence.ends
    able = living(case)
    newest = max((p.last_ns for p in able), default=0)

    def order(process: Process) -> tuple[object, ...]:
        held = ends[process.index].held is not None or ends[process.index].lingers
        silent = held or newest - process.last_ns > TOGETHER_NS
        rank = process.rank
        return silent, process.role != AGENT, rank is None, rank or 0, process.start_ns

    able.sort(key=order)
    here = [p for p in able if p.id not in elsewhere and evidence.look(p).alive]
    if not here or (here[0].host != able[0].host and not anywhere):
        return []
    return [p.id for p in here]
