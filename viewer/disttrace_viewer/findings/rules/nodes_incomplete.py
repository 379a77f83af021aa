"""The rendezvous of launchers waits for nodes that did not come."""

from __future__ import annotations

from collections.abc import Iterator

from disttrace_viewer.analysis.process_ends import CLEAN
from disttrace_viewer.evidence.node_rendezvous import Attempt
from disttrace_viewer.evidence.waits.wait import NODES, Wait
from disttrace_viewer.findings.case import Case
from disttrace_viewer.findings.finding import CERTAIN, ERROR, LIKELY, NOTE, Finding, Scope
from disttrace_viewer.findings.rules import outside
from disttrace_viewer.findings.rules.starting import may_come
from disttrace_viewer.wording.findings import nodes_incomplete as words


def find(case: Case) -> Iterator[Finding]:
    """One finding per store in which agents wait; those who wait there under another id belong."""
    for wait in case.oldest():
        if wait.kind == NODES and wait not in case.owner and case.old(wait) and not wait.complete:
            yield _finding(case, wait)


def _finding(case: Case, wait: Wait) -> Finding:
    agents = case.agents
    attempt = next(a for a in agents.attempts if a.op == wait.op)
    arrived, elsewhere = agents.arrived(attempt), agents.elsewhere(attempt)
    same = [w for w in case.open() if w.kind == NODES and w.exchange == wait.exchange]
    there = {a.op.id for a in elsewhere}
    others = [w for w in case.open() if w.kind == NODES and w.op.id in there]
    late = [a for a in agents.late(attempt) if a.process in wait.targets]
    away = [a.process for a in late]
    who = [a.process for a in arrived]
    disagree = len({(a.least, a.most) for a in (*arrived, *late)}) > 1
    found = words.Nodes(
        attempt=attempt,
        arrived=arrived,
        elsewhere=elsewhere,
        late=late,
        doing=outside.doing(case, away),
        waited_ns=max(case.evidence.age_ns(w.op) for w in same),
    )
    # Nodes are started one after another by hand or by a scheduler: seconds apart, as a rule.
    start = not (elsewhere or late or disagree) and may_come(case, same, ())
    return Finding(
        kind="rendezvous_incomplete",
        severity=NOTE if start else ERROR,
        summary=words.summary(case.evidence.trace, found),
        certainty=CERTAIN
        if elsewhere or disagree or not (wait.unknown or outside.mute(case, away))
        else LIKELY,
        hint=words.APART if elsewhere else words.DISAGREE if disagree else words.START,
        culprits=tuple(a.process for a in late if not disagree and _stayed_away(case, a)),
        waiting=tuple(sorted({*who, *(w.process for w in others)})),
        op=wait.op.call.op,
        locations=outside.locations(case, away),
        at_ns=wait.op.begin_ns,
        scope=Scope(
            exchanges=frozenset(w.exchange for w in [*same, *others]),
            roots=frozenset(away),
        ),
        settles=()
        if elsewhere or disagree
        else (words.SETTLES,)
        if wait.unknown
        else outside.settles(case, away, early=False),
    )


def _stayed_away(case: Case, one: Attempt) -> bool:
    """Whether it is known to be gone for good, or to be busy elsewhere; not if it was killed."""
    return case.outside(one.process) and case.evidence.ends[one.process].how in ("alive", CLEAN)
