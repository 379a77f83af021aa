"""The rendezvous of launchers waits for nodes that did not come."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from disttrace_viewer.analysis.process_ends import CLEAN
from disttrace_viewer.analysis.sample import together
from disttrace_viewer.evidence.rendezvous import UNNAMED, Attempt, host_of
from disttrace_viewer.evidence.wait import NODES, Wait
from disttrace_viewer.findings.case import Case
from disttrace_viewer.findings.finding import ERROR, NOTE, RuleFinding, Scope, why
from disttrace_viewer.findings.rules import outside
from disttrace_viewer.findings.rules.communicator_creation import may_come
from disttrace_viewer.trace.model import JobTrace
from disttrace_viewer.wording import sentences


def find(case: Case) -> Iterator[RuleFinding]:
    """One finding per store in which agents wait; those who wait there under another id belong."""
    for wait in case.oldest():
        if wait.kind == NODES and wait not in case.owner and case.old(wait) and not wait.complete:
            yield _finding(case, wait)


def _finding(case: Case, wait: Wait) -> RuleFinding:
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
    hint = (
        "See whether torchrun was started on every node, with the same --rdzv-endpoint and"
        " --rdzv-id; --nnodes MIN:MAX goes on with fewer."
    )
    if elsewhere:
        hint = "Give every node the same --rdzv-id and the same --rdzv-endpoint."
    elif disagree:
        hint = "Give every node the same --nnodes."
    # Nodes are started one after another by hand or by a scheduler: seconds apart, as a rule.
    start = not (elsewhere or late or disagree) and may_come(case, same, ())
    return RuleFinding(
        kind="rendezvous_incomplete",
        severity=NOTE if start else ERROR,
        summary=summary(case, attempt, same, late),
        because=()
        if elsewhere or disagree
        else why((wait.unknown, sentences.START_UP), (outside.mute(case, away), sentences.MUTE)),
        hint=hint,
        culprits=tuple(
            a.process
            for a in late
            # Gone for good, or busy elsewhere; and not killed.
            if not disagree
            and case.outside(a.process)
            and case.evidence.ends[a.process].how in ("alive", CLEAN)
        ),
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
        else ("collect the journals of the other nodes, if they were started",)
        if wait.unknown
        else outside.settles(case, away, early=False),
    )


def summary(case: Case, attempt: Attempt, same: Sequence[Wait], late: Sequence[Attempt]) -> str:
    """Who waits where, how many came, and what is known of the others, the ``late`` too."""
    trace, who = case.evidence.trace, [one.process for one in case.agents.arrived(attempt)]
    name = "" if attempt.run in (None, UNNAMED) else f" {attempt.run!r}"
    came = f"{len(who)} of {attempt.least or '?'} nodes came"
    lasting = sentences.span(max(case.evidence.age_ns(w.op) for w in same))
    return (
        f"{sentences.capital(_agents(trace, who))} {sentences.have(who)} been waiting in the"
        f" rendezvous{name} of nodes{_at(trace, attempt)} for {lasting}:"
        f" {'; '.join([came, *_missing(case, attempt, late)])}."
    )


def _missing(case: Case, attempt: Attempt, late: Sequence[Attempt]) -> Iterator[str]:
    """Who is missing, as far as that is known, and what these nodes do not agree on."""
    trace, arrived = case.evidence.trace, case.agents.arrived(attempt)
    elsewhere = case.agents.elsewhere(attempt)
    for one in late:
        agent = _agents(trace, [one.process])
        if one.least != attempt.least:
            gone = f"{agent} went on without, with {_nodes(one)}"
            yield f"{gone} where {_nodes(attempt)} are wanted here"
            continue
        where = outside.where(case, [one.process], named=True).removeprefix("; ")
        yield f"{agent} was in an earlier round and did not come: {where}"
    stores = together(
        (
            f"for the same id{_at(trace, one)}"
            if one.place != attempt.place
            else f"there under the id {one.run!r}",
            one.process,
        )
        for one in elsewhere
    )
    for how, who in stores.items():
        yield f"{_agents(trace, who)} {'waits' if len(who) == 1 else 'wait'} {how}"
    sizes = together((_nodes(one), one.process) for one in arrived)
    if len(sizes) > 1:
        claims = [f"{_agents(trace, who)}: {nodes}" for nodes, who in sizes.items()]
        yield f"they do not agree on --nnodes: {sentences.listed(claims)}"
    left = (attempt.least or 0) - len(arrived) - len(late)
    if left > 0 and not elsewhere:
        named = {one.node_rank for one in arrived}
        nodes = [str(n) for n in range(attempt.least or 0) if n not in named]
        if None not in named and len(nodes) == left:
            yield f"no process of node {sentences.listed(nodes)} was seen"
        else:
            yield f"of the other {'one' if left == 1 else left} no process was seen"


def _at(trace: JobTrace, attempt: Attempt) -> str:
    place = trace.place_by_id.get(attempt.place or "")
    return "" if place is None else f" at {place.name}"


def _nodes(attempt: Attempt) -> str:
    """``--nnodes 2`` or ``--nnodes 1:2``."""
    least, most = attempt.least, attempt.most
    return f"--nnodes {least}" if least == most else f"--nnodes {least}:{most}"


def _agents(trace: JobTrace, processes: Iterable[int]) -> str:
    """``agent 4711 on a`` or ``agents 4711 on a and 4712 on b``."""
    found = [trace.processes[p] for p in processes]
    names = [f"{p.pid or p.id[:8]} on {host_of(p)}" for p in found]
    return f"agent{'s' if len(names) > 1 else ''} {sentences.listed(names)}"
