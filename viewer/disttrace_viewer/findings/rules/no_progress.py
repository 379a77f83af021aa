"""Everybody is in, with equal arguments, and nobody returns: network, device or library."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from disttrace_viewer.analysis.liveness import STOPPED
from disttrace_viewer.analysis.operation import frame
from disttrace_viewer.analysis.process_ends import ALIVE, MISSED_NS, SILENT, is_closed
from disttrace_viewer.analysis.wait_graph import COLLECTIVE, MESSAGE, OTHER, Wait
from disttrace_viewer.findings.case import Case
from disttrace_viewer.findings.finding import LIKELY, Finding, Scope
from disttrace_viewer.findings.rules import outside
from disttrace_viewer.wording import sentences


def find(case: Case) -> Iterator[Finding]:
    """One finding per exchange that is complete, old, and not over.

    What an operation waits for that is seen only from outside is not known; it comes last.
    """
    for kinds in ((COLLECTIVE, MESSAGE), (OTHER,)):
        for wait in case.oldest():
            if wait.kind not in kinds or not wait.complete or wait in case.owner:
                continue
            # A closed connection is the end of a process, and no lack of progress.
            if case.old(wait) and not is_closed(wait.op.error):
                yield _finding(case, wait)


def _finding(case: Case, wait: Wait) -> Finding:
    evidence, trace = case.evidence, case.evidence.trace
    inside = [w for w in case.open() if w.exchange == wait.exchange or _alike(w, wait)]
    still = () if wait.kind == OTHER else _still(case, wait.arrived)
    who = [w.process for w in inside]
    group = wait.op.call.group
    label = sentences.processes(trace, who)
    lasting = (
        f"{sentences.have(len(who))} been in {{}} at {sentences.place(frame(trace, wait.op))} for"
        f" {sentences.span(max(evidence.age_ns(w.op) for w in inside))}"
    )
    name = sentences.operation(trace, wait.op)
    if wait.kind == OTHER:
        summary = (
            f"{sentences.capital(label)} {lasting.format(name)}, and what it waits for was not"
            " recorded."
        )
    else:
        summary = (
            f"All members have joined {name} with matching arguments, and {label}"
            f" {lasting.format('it')}: nothing moves"
            f"{outside.where(case, still) if still else ''}."
        )
    return Finding(
        kind="no_progress",
        summary=summary,
        certainty=LIKELY,
        culprits=still,
        hint=(
            "Look at what holds it there: a signal, a debugger, a call in a library that keeps the"
            " GIL, a swapping or frozen host."
            if still
            else "Suspect the network, the device or the library: test the links between these"
            " hosts, look for errors of the driver, and compare library versions."
        ),
        waiting=tuple(who),
        op=wait.op.call.op,
        group=None if group is None else trace.groups[group].id,
        seq=wait.op.seq,
        locations=evidence.locations(w.op for w in inside),
        at_ns=wait.op.begin_ns,
        scope=Scope(exchanges=frozenset(w.exchange for w in inside), roots=frozenset(who)),
    )


def _still(case: Case, arrived: Sequence[int]) -> tuple[int, ...]:
    """Members that have begun, and then stopped running while other members went on waiting."""
    ends, processes = case.evidence.ends, case.evidence.trace.processes
    newest = max((processes[p].last_ns for p in arrived), default=0)
    return tuple(
        p
        for p in arrived
        if ends[p].held == STOPPED
        or (ends[p].how in (ALIVE, SILENT) and newest - processes[p].last_ns > MISSED_NS)
    )


def _alike(one: Wait, two: Wait) -> bool:
    return one.kind == two.kind == OTHER and one.op.call.op == two.op.call.op
