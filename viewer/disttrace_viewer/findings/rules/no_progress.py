"""Everybody is in, with equal arguments, and nobody returns: network, device or library."""

from __future__ import annotations

from collections.abc import Iterator

from disttrace_viewer.findings import wording
from disttrace_viewer.findings.case import Case
from disttrace_viewer.findings.finding import LIKELY, Finding, Scope
from disttrace_viewer.findings.operation import frame
from disttrace_viewer.findings.waits import COLLECTIVE, MESSAGE


def find(case: Case) -> Iterator[Finding]:
    """One finding per exchange that is complete, old, and not over."""
    seen = set()
    for wait in case.oldest():
        if wait in case.owner or wait.exchange in seen or not wait.complete:
            continue
        if wait.kind not in (COLLECTIVE, MESSAGE) or not case.old(wait):
            continue
        seen.add(wait.exchange)
        evidence, trace = case.evidence, case.evidence.trace
        inside = [w for w in case.open() if w.exchange == wait.exchange]
        who = [w.process for w in inside]
        group = wait.op.call.group
        label = wording.processes(trace, who)
        yield Finding(
            kind="no_progress",
            summary=(
                f"Everybody came to {wording.operation(trace, wait.op)} with equal arguments, and"
                f" {label} {wording.have(len(who))} been in it at"
                f" {wording.place(frame(trace, wait.op))} for"
                f" {wording.span(max(evidence.age_ns(w.op) for w in inside))} without an end."
            ),
            certainty=LIKELY,
            hint=(
                "Suspect the network, the device or the library: test the links between these"
                " hosts, look for errors of the driver, and compare library versions."
            ),
            waiting=tuple(who),
            op=wait.op.call.op,
            group=None if group is None else trace.groups[group].id,
            seq=wait.op.seq,
            locations=evidence.locations(w.op for w in inside),
            at_ns=wait.op.begin_ns,
            scope=Scope(exchanges=frozenset({wait.exchange}), roots=frozenset(who)),
        )
