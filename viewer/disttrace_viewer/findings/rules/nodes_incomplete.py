"""The rendezvous of launchers waits for nodes that did not come."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from disttrace_viewer.analysis.node_rendezvous import UNNAMED, Attempt, host_of
from disttrace_viewer.analysis.process_ends import CLEAN
from disttrace_viewer.analysis.wait_graph import NODES, Wait
from disttrace_viewer.findings.case import Case
from disttrace_viewer.findings.finding import CERTAIN, LIKELY, Finding, Scope
from disttrace_viewer.findings.rules import outside
from disttrace_viewer.wording import sentences


def find(case: Case) -> Iterator[Finding]:
    """One finding per store in which agents wait; those who wait there under another id belong."""
    for wait in case.oldest():
        if wait.kind == NODES and wait not in case.owner and case.old(wait) and not wait.complete:
            yield _finding(case, wait)


def _finding(case: Case, wait: Wait) -> Finding:
    evidence, agents = case.evidence, case.agents
    attempt = next(a for a in agents.attempts if a.op == wait.op)
    arrived, elsewhere = agents.arrived(attempt), agents.elsewhere(attempt)
    same = [w for w in case.open() if w.kind == NODES and w.exchange == wait.exchange]
    there = {a.op.id for a in elsewhere}
    others = [w for w in case.open() if w.kind == NODES and w.op.id in there]
    late = [a for a in agents.late(attempt) if a.process in wait.targets]
    who = [a.process for a in arrived]
    disagree = len({(a.least, a.most) for a in (*arrived, *late)}) > 1
    name = "" if attempt.run in (None, UNNAMED) else f" {attempt.run!r}"
    age = sentences.span(max(evidence.age_ns(w.op) for w in same))
    came = f"{len(arrived)} of {attempt.least or '?'} nodes came"
    text = "; ".join([came, *_missing(case, attempt, arrived, late, elsewhere)])
    return Finding(
        kind="rendezvous_incomplete",
        summary=(
            f"{_capital(_agents(case, who))} {sentences.have(len(who))} been waiting in the"
            f" rendezvous{name} of nodes{_at(case, attempt)} for {age}: {text}."
        ),
        certainty=CERTAIN if elsewhere or disagree or not wait.unknown else LIKELY,
        hint=_hint(disagree=disagree, apart=bool(elsewhere)),
        culprits=tuple(a.process for a in late if not disagree and _stayed_away(case, a)),
        waiting=tuple(sorted({*who, *(w.process for w in others)})),
        op=wait.op.call.op,
        locations=outside.locations(case, [a.process for a in late]),
        at_ns=wait.op.begin_ns,
        scope=Scope(
            exchanges=frozenset(w.exchange for w in [*same, *others]),
            roots=frozenset(a.process for a in late),
        ),
        settles=("collect the journals of the other nodes, if they were started",)
        if wait.unknown and not elsewhere and not disagree
        else (),
    )


def _missing(
    case: Case,
    attempt: Attempt,
    arrived: Sequence[Attempt],
    late: Sequence[Attempt],
    elsewhere: Sequence[Attempt],
) -> Iterator[str]:
    """Who is missing, as far as that is known, and what these nodes do not agree on."""
    for one in late:
        if one.least != attempt.least:
            gone = f"{_agents(case, [one.process])} went on without, with {_nodes(one)}"
            yield f"{gone} where {_nodes(attempt)} are wanted here"
            continue
        where = outside.where(case, [one.process], named=True).removeprefix("; ")
        yield f"{_agents(case, [one.process])} was in an earlier round and did not come: {where}"
    stores: dict[str, list[int]] = {}
    for one in elsewhere:
        apart = one.place != attempt.place
        how = f"for the same id{_at(case, one)}" if apart else f"there under the id {one.run!r}"
        stores.setdefault(how, []).append(one.process)
    for how, who in stores.items():
        yield f"{_agents(case, who)} {'waits' if len(who) == 1 else 'wait'} {how}"
    sizes: dict[object, list[Attempt]] = {}
    for one in arrived:
        sizes.setdefault((one.least, one.most), []).append(one)
    if len(sizes) > 1:
        yield "they do not agree on --nnodes: " + sentences.listed(
            [
                f"{_agents(case, [a.process for a in found])}: {_nodes(found[0])}"
                for found in sizes.values()
            ]
        )
    left = (attempt.least or 0) - len(arrived) - len(late)
    if left > 0 and not elsewhere:
        claims = {a.node_rank for a in arrived}
        nodes = [str(n) for n in range(attempt.least or 0) if n not in claims]
        of = (
            f" of node {sentences.listed(nodes)}"
            if None not in claims and len(nodes) == left
            else ""
        )
        other = "the other one" if left == 1 else f"the other {left}"
        yield f"no process{of} was seen" if of else f"of {other} no process was seen"


def _at(case: Case, attempt: Attempt) -> str:
    place = case.evidence.trace.place_by_id.get(attempt.place or "")
    return "" if place is None else f" at {place.name}"


def _nodes(attempt: Attempt) -> str:
    """``--nnodes 2`` or ``--nnodes 1:2``."""
    least, most = attempt.least, attempt.most
    return f"--nnodes {least}" if least == most else f"--nnodes {least}:{most}"


def _stayed_away(case: Case, one: Attempt) -> bool:
    """Whether it is known to be gone for good, or to be busy elsewhere; not if it was killed."""
    return case.outside(one.process) and case.evidence.ends[one.process].how in ("alive", CLEAN)


def _agents(case: Case, processes: Iterable[int]) -> str:
    """``agent 4711 on a`` or ``agents 4711 on a and 4712 on b``."""
    found = [case.evidence.trace.processes[p] for p in processes]
    names = [f"{p.pid or p.id[:8]} on {host_of(p)}" for p in found]
    return f"agent{'s' if len(names) > 1 else ''} {sentences.listed(names)}"


def _capital(text: str) -> str:
    return sentences.capital(text)


def _hint(*, disagree: bool, apart: bool) -> str:
    if apart:
        return "Give every node the same --rdzv-id and the same --rdzv-endpoint."
    if disagree:
        return "Give every node the same --nnodes."
    return (
        "See whether torchrun was started on every node, with the same --rdzv-endpoint and"
        " --rdzv-id; --nnodes MIN:MAX goes on with fewer."
    )
