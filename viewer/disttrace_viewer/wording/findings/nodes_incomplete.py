"""The rendezvous of launchers lacks nodes: which, and what the agents do not agree on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from disttrace_viewer.evidence.node_rendezvous import UNNAMED, Attempt, host_of
from disttrace_viewer.trace.model import Trace
from disttrace_viewer.wording import sentences
from disttrace_viewer.wording.findings import outside
from disttrace_viewer.wording.findings.outside import Doing

APART = "Give every node the same --rdzv-id and the same --rdzv-endpoint."
DISAGREE = "Give every node the same --nnodes."
START = (
    "See whether torchrun was started on every node, with the same --rdzv-endpoint and --rdzv-id;"
    " --nnodes MIN:MAX goes on with fewer."
)
SETTLES = "collect the journals of the other nodes, if they were started"


@dataclass(frozen=True, slots=True)
class Nodes:
    """One rendezvous of agents."""

    attempt: Attempt
    arrived: Sequence[Attempt]
    elsewhere: Sequence[Attempt]
    """Those that wait under another id, or at another store."""
    late: Sequence[Attempt]
    """Those that should be there, and are not."""
    doing: Mapping[int, Doing]
    """What the late are at."""
    waited_ns: int


def summary(trace: Trace, found: Nodes) -> str:
    """Who waits where, how many came, and what is known of the others."""
    attempt, who = found.attempt, [one.process for one in found.arrived]
    name = "" if attempt.run in (None, UNNAMED) else f" {attempt.run!r}"
    came = f"{len(who)} of {attempt.least or '?'} nodes came"
    return (
        f"{sentences.capital(_agents(trace, who))} {sentences.have(who)} been waiting in the"
        f" rendezvous{name} of nodes{_at(trace, attempt)} for {sentences.span(found.waited_ns)}:"
        f" {'; '.join([came, *_missing(trace, found)])}."
    )


def _missing(trace: Trace, found: Nodes) -> Iterator[str]:
    """Who is missing, as far as that is known, and what these nodes do not agree on."""
    attempt, arrived = found.attempt, found.arrived
    for one in found.late:
        agent = _agents(trace, [one.process])
        if one.least != attempt.least:
            gone = f"{agent} went on without, with {_nodes(one)}"
            yield f"{gone} where {_nodes(attempt)} are wanted here"
            continue
        doing = {one.process: found.doing[one.process]}
        where = outside.where(trace, doing, named=True).removeprefix("; ")
        yield f"{agent} was in an earlier round and did not come: {where}"
    stores = sentences.together(
        (
            f"for the same id{_at(trace, one)}"
            if one.place != attempt.place
            else f"there under the id {one.run!r}",
            one.process,
        )
        for one in found.elsewhere
    )
    for how, who in stores.items():
        yield f"{_agents(trace, who)} {'waits' if len(who) == 1 else 'wait'} {how}"
    sizes = sentences.together((_nodes(one), one.process) for one in arrived)
    if len(sizes) > 1:
        claims = [f"{_agents(trace, who)}: {nodes}" for nodes, who in sizes.items()]
        yield f"they do not agree on --nnodes: {sentences.listed(claims)}"
    left = (attempt.least or 0) - len(arrived) - len(found.late)
    if left > 0 and not found.elsewhere:
        named = {one.node_rank for one in arrived}
        nodes = [str(n) for n in range(attempt.least or 0) if n not in named]
        if None not in named and len(nodes) == left:
            yield f"no process of node {sentences.listed(nodes)} was seen"
        else:
            yield f"of the other {'one' if left == 1 else left} no process was seen"


def _at(trace: Trace, attempt: Attempt) -> str:
    place = trace.place_by_id.get(attempt.place or "")
    return "" if place is None else f" at {place.name}"


def _nodes(attempt: Attempt) -> str:
    """``--nnodes 2`` or ``--nnodes 1:2``."""
    least, most = attempt.least, attempt.most
    return f"--nnodes {least}" if least == most else f"--nnodes {least}:{most}"


def _agents(trace: Trace, processes: Iterable[int]) -> str:
    """``agent 4711 on a`` or ``agents 4711 on a and 4712 on b``."""
    found = [trace.processes[p] for p in processes]
    names = [f"{p.pid or p.id[:8]} on {host_of(p)}" for p in found]
    return f"agent{'s' if len(names) > 1 else ''} {sentences.listed(names)}"
