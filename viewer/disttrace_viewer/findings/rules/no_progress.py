"""Everybody is in, with equal arguments, and nobody returns: network, device or library."""

from __future__ import annotations

from collections.abc import Iterator

from disttrace_viewer.analysis.operation import frame
from disttrace_viewer.analysis.process_ends import is_closed
from disttrace_viewer.analysis.wait_graph import COLLECTIVE, MESSAGE, OTHER, SERVER, Wait
from disttrace_viewer.findings.case import Case
from disttrace_viewer.findings.finding import LIKELY, Finding, Scope
from disttrace_viewer.findings.rules import outside
from disttrace_viewer.wording import sentences

_FROZEN = (
    "Look at what holds it there: a signal, a debugger, a call in a library that keeps the GIL, a"
    " swapping or frozen host."
)


def find(case: Case) -> Iterator[Finding]:
    """One finding per exchange that is complete, old, and not over; and per store whose server is
    still.

    What an operation waits for that is seen only from outside is not known; it comes last.
    """
    for wait in case.oldest():
        if wait.kind == SERVER and wait not in case.owner and case.old(wait):
            yield _unanswered(case, wait)
    for kinds in ((COLLECTIVE, MESSAGE), (OTHER,)):
        for wait in case.oldest():
            if wait.kind not in kinds or not wait.complete or wait in case.owner:
                continue
            # A closed connection is the end of a process, and no lack of progress.
            if case.old(wait) and not is_closed(wait.op.error) and not _just_complete(case, wait):
                yield _finding(case, wait)


def _just_complete(case: Case, wait: Wait) -> bool:
    """Whether the last one came so late that nobody knows whether it would have moved since."""
    evidence, op = case.evidence, wait.op
    if wait.kind == COLLECTIVE and wait.stream is not None and op.seq is not None:
        inside = list(evidence.sample.members(wait.stream, op.seq).values())
    else:
        partner = evidence.sample.other_end(op) if wait.kind == MESSAGE else None
        inside = [] if partner is None else [partner]
    last = max((one.begin_ns for one in inside), default=0)
    until = op.end_ns or evidence.until_ns(op.process)
    return op.error is None and until - last < evidence.stalled_after_ns


def _finding(case: Case, wait: Wait) -> Finding:
    evidence, trace = case.evidence, case.evidence.trace
    inside = [w for w in case.open() if w.exchange == wait.exchange or _alike(w, wait)]
    # Members that have begun, and then stopped running while other members went on waiting.
    members = () if wait.kind == OTHER else wait.arrived
    still = tuple(p for p in members if evidence.is_still(p, members))
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
            _FROZEN
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


def _unanswered(case: Case, wait: Wait) -> Finding:
    """A store's server does not answer, since its process does not run."""
    evidence, trace = case.evidence, case.evidence.trace
    inside = case.inside(wait.exchange)
    who = list(dict.fromkeys(w.process for w in inside))
    (server,) = wait.targets
    return Finding(
        kind="no_progress",
        summary=(
            f"{sentences.capital(sentences.processes(trace, who))} {sentences.have(len(who))} been"
            f" in {sentences.operation(trace, wait.op)} at"
            f" {sentences.place(frame(trace, wait.op))} for"
            f" {sentences.span(max(evidence.age_ns(w.op) for w in inside))}, and"
            f" {trace.processes[server].label}, which serves this store, does not answer"
            f"{outside.where(case, [server])}."
        ),
        certainty=LIKELY,
        culprits=(server,),
        hint=_FROZEN,
        waiting=tuple(who),
        op=wait.op.call.op,
        locations=evidence.locations(w.op for w in inside) + outside.locations(case, [server]),
        at_ns=wait.op.begin_ns,
        scope=Scope(exchanges=frozenset({wait.exchange}), roots=frozenset({server})),
    )


def _alike(one: Wait, two: Wait) -> bool:
    return one.kind == two.kind == OTHER and one.op.call.op == two.op.call.op
