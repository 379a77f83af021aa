"""A rendezvous waits for members that did not come: ranks of a group, or nodes of a launcher."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence

from disttrace_viewer.analysis.process_ends import CLEAN
from disttrace_viewer.evidence.mismatches import minority
from disttrace_viewer.evidence.rendezvous import UNNAMED, Attempt, Rendezvous
from disttrace_viewer.evidence.wait import NODES, RENDEZVOUS, Wait, Waits
from disttrace_viewer.findings.case import Case
from disttrace_viewer.findings.finding import ERROR, NOTE, RuleFinding, Scope, why
from disttrace_viewer.findings.rules import downgraded, ends, late_arrivals, outside
from disttrace_viewer.findings.rules.communicator_creation import may_come
from disttrace_viewer.findings.rules.ends import EXITED, KILLED, Unseen, unseen_of
from disttrace_viewer.trace.model import JobTrace, Store
from disttrace_viewer.trace.values import together
from disttrace_viewer.wording import sentences


def find(case: Case) -> Iterator[RuleFinding]:
    """One finding per rendezvous that waits for a rank who waits for nothing, or is not there."""
    # Who finds the addresses of an earlier attempt is refused, by any rank that comes.
    met = (case.rendezvous.of(op) for op, _ in downgraded.met_before(case))
    refused = {rendezvous.key for rendezvous in met if rendezvous is not None}
    known: dict[Hashable, list[Wait]] = {}
    for wait in case.due(RENDEZVOUS):
        if wait.exchange in refused or new_group(case, wait):
            continue  # a creation: see missing_participant
        if wait.exchange not in known:  # else the same: while a job starts all its ranks are in one
            known[wait.exchange] = _elsewhere(case, wait)
        rendezvous, elsewhere = _of(case, wait), known[wait.exchange]
        sinks = [t for t in wait.targets if case.outside(t)]
        # Uncertain: a rank is missing, and it is not known who.
        if elsewhere or sinks or wait.absent or (rendezvous.uncertain and not wait.targets):
            yield _finding(case, wait, rendezvous, sinks, elsewhere)
            known.clear()  # what it explains is open no more


def _of(case: Case, wait: Wait) -> Rendezvous:
    rendezvous = case.rendezvous.of(wait.op)
    assert rendezvous is not None  # else it is no wait of this kind
    return rendezvous


def new_group(case: Case, wait: Wait) -> bool:
    """Whether a rendezvous is that of ``new_group``, which all members of the parent must call."""
    parent = case.sample.around(wait.op)
    return parent is not None and parent.call.op.startswith(("new_", "split_"))


def _elsewhere(case: Case, wait: Wait) -> list[Wait]:
    """Waits for the same group (size, other ranks) at another prefix, file or address."""
    mine = _of(case, wait)
    return [
        other
        for other in case.open()
        if other.kind == RENDEZVOUS
        and _where(theirs := _of(case, other)) != _where(mine)
        and _same_group(case, wait, other)
        and theirs.expected == mine.expected
        and not set(theirs.arrived) & set(mine.arrived)
    ]


def _where(rendezvous: Rendezvous) -> tuple[object, ...]:
    return (rendezvous.store.place, rendezvous.store.prefix)


def _same_group(case: Case, one: Wait, two: Wait) -> bool:
    """Whether both make a default group, or a group by hand in one store."""
    made = [case.sample.around(wait.op) for wait in (one, two)]
    if all(parent is not None and parent.call.op == "init_process_group" for parent in made):
        return one.op.call.op == two.op.call.op
    return _of(case, one).store.place == _of(case, two).store.place


def _finding(
    case: Case, wait: Wait, rendezvous: Rendezvous, sinks: list[int], elsewhere: list[Wait]
) -> RuleFinding:
    same = [
        w
        for w in case.open()
        if w.kind == RENDEZVOUS
        and w.late_ns is None
        and (w.exchange == wait.exchange or (set(w.absent) & set(wait.absent) and not elsewhere))
    ]
    who = sorted({w.process for w in same} | {w.process for w in elsewhere})
    where = {w.process: _where(_of(case, w)) for w in (*same, *elsewhere) if elsewhere}
    early = all(case.early(w) for w in same)
    unseen = _unseen(case, wait)
    ended = {rank for rank, o in unseen.items() if o.sure and o.worker.event in (EXITED, KILLED)}
    lost = [rank for rank in wait.absent if rank not in ended]
    top = case.evidence.top(wait.op)
    # A rank that requests something of another one is on its way here, once it has the answer.
    away = [s for s in sinks if case.at_work(s) is None]
    size = case.trace.processes[wait.process].world_size
    start = not (elsewhere or ended) and may_come(case, same, sinks)
    return RuleFinding(
        kind="rendezvous_incomplete",
        severity=NOTE if start else ERROR,
        summary=summary(case, wait, same, sinks, elsewhere, start=start),
        because=()
        if elsewhere
        else why(
            (lost or start or rendezvous.uncertain, sentences.START_UP),
            (early, sentences.SOON),
            (away != sinks, sentences.ON_THE_WAY),
            (outside.unresponsive(case, sinks), sentences.FELL_SILENT),
        ),
        hint=_hint(case, wait, sinks, elsewhere),
        # Those at the place where fewer are; none where it is one against one, or not known.
        culprits=tuple(sorted(minority(where, len(where))) if len(where) > 2 else ())
        if elsewhere
        else ()
        if start
        else late_arrivals.answerable(late_arrivals.held_up_by(case, wait), away),
        # A store may be made for more clients than there are ranks.
        absent_ranks=()
        if start or elsewhere
        else tuple(rank for rank in wait.absent if size is None or rank < size),
        waiting=tuple(who),
        op=top.call.op,
        locations=case.evidence.locations(w.op for w in (*same, *elsewhere))
        + outside.locations(case, sinks),
        at_ns=wait.op.begin_ns,
        scope=Scope.of((*same, *elsewhere), roots=sinks, absent=wait.absent),
        settles=(f"{outside.journals(lost)}, if started",)
        if lost
        else ()
        if elsewhere
        else outside.settles(case, sinks, early=early),
    )


def _unseen(case: Case, wait: Wait) -> Mapping[int, Unseen]:
    """What launchers know of the ranks that are absent."""
    attempt, unseen = case.trace.processes[wait.process].attempt, unseen_of(case.trace)
    return {r: one for r in wait.absent if (one := unseen.get((attempt, r))) is not None}


def _hint(case: Case, wait: Wait, sinks: list[int], elsewhere: list[Wait]) -> str:
    if (stopped := outside.stopped_hint(case, sinks)) is not None:
        return stopped
    if elsewhere:
        return "Give all of them one store (init_method, MASTER_ADDR and MASTER_PORT) and prefix."
    if not wait.absent:
        return "See what these ranks do before they join."
    return "See whether these ranks were started, and on which host; read their output."


_SHOWN = 4
"""Ranks without a journal of which their launcher knows something."""


def summary(
    case: Case, wait: Wait, same: Waits, sinks: Sequence[int], elsewhere: Waits, *, start: bool
) -> str:
    """Who waits where, who has arrived, and who has not; ``start``: the others may yet come."""
    trace, rendezvous, top = case.trace, _of(case, wait), case.evidence.top(wait.op)
    arrived, expected = rendezvous.arrived, rendezvous.expected
    lasting = sentences.span(max(case.evidence.age_ns(w.op) for w in same))
    text = _missing(case, wait, sinks)
    if start:
        ranks = "ranks have" if len(arrived) != 1 else "ranks has" if expected != 1 else "rank has"
        came = f"{len(arrived)} of {expected} {ranks}" if expected else f"{len(arrived)} {ranks}"
        return f"{came} come to {top.call.op} ({sentences.line(wait.op)}) in {lasting}; {text}."
    came = f"{len(arrived)} of {expected}" if expected else str(len(arrived))
    came += f" {sentences.have(arrived)} arrived"
    if arrived:  # a group made by hand may number them in its own way
        known = [trace.processes[p].rank for p in arrived.values()]
        there = arrived if None in known else trace.ranks_of({*arrived.values()})
        came += f" ({sentences.ranks(there)})"
    if elsewhere:
        others = {w.process: None for w in elsewhere}
        verb = "wait" if len(others) > 1 else "waits"
        apart = _apart(trace, _of(case, elsewhere[0]).store, rendezvous.store)
        text = f"{sentences.processes(trace, others)} {verb} {apart}"
    return (
        f"{sentences.have_been(trace, sorted({w.process for w in same}))} waiting in {top.call.op}"
        f" ({sentences.line(wait.op)}) at {rendezvous.store.name or wait.op.call.op} for {lasting}:"
        f" {came}; {text}."
    )


def _apart(trace: JobTrace, *stores: Store) -> str:
    """How two rendezvous points differ: the other one first."""
    if stores[0].place != stores[1].place:
        known = [trace.place_by_id.get(store.place) for store in stores]
        there, here = ("?" if place is None else place.name for place in known)
        return f"at {there}, not at {here}"
    there, here = ("/".join(part or "?" for part in store.prefix) for store in stores)
    return f"in the same store under the prefix {there!r}, not {here!r}"


def _missing(case: Case, wait: Wait, sinks: Sequence[int]) -> str:
    trace, late, parts = case.trace, dict(wait.lateness), []
    missing = case.by_rank(sinks)
    came = [p for p in missing if p in late]
    never = [p for p in missing if p not in late]
    if came:
        by = sentences.span(min(late[p] for p in came))
        who = sentences.processes(trace, came)
        parts.append(f"{who} arrived {by} after the others had given up")
    if never:
        where = outside.where(case, never, named=True)
        parts.append(f"{sentences.processes(trace, never)} never joined{where}")
    known = list(_unseen(case, wait).items())[:_SHOWN]
    for rank, one in known:
        parts.append(f"rank {rank} {ends.words(one.worker, sure=one.sure)}")
    nowhere = set(wait.absent) - {rank for rank, _ in known}
    if nowhere:
        parts.append(f"no journal of {sentences.ranks(nowhere)} was found")
    if not parts and _of(case, wait).uncertain:
        parts.append("who is missing is not known, for the group was made by hand")
    return " and ".join(parts)


def find_nodes(case: Case) -> Iterator[RuleFinding]:
    """One finding per store in which agents wait; those who wait there under another id belong."""
    for wait in case.due(NODES):
        if not wait.complete:
            yield _finding_of_nodes(case, wait)


def _finding_of_nodes(case: Case, wait: Wait) -> RuleFinding:
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
    name = "" if attempt.run in (None, UNNAMED) else f" {attempt.run!r}"
    lasting = sentences.span(max(case.evidence.age_ns(w.op) for w in same))
    came = f"{len(who)} of {attempt.least or '?'} nodes came"
    been = f"{sentences.capital(_agents(case.trace, who))} {sentences.have(who)} been waiting"
    # Nodes are started one after another by hand or by a scheduler: seconds apart, as a rule.
    start = not (elsewhere or late or disagree) and may_come(case, same, ())
    return RuleFinding(
        kind="rendezvous_incomplete",
        severity=NOTE if start else ERROR,
        summary=f"{been} in the rendezvous{name} of nodes{_at(case.trace, attempt)} for {lasting}:"
        f" {'; '.join([came, *_missing_nodes(case, attempt, late)])}.",
        because=()
        if elsewhere or disagree
        else why(
            (wait.unknown, sentences.START_UP),
            (outside.unresponsive(case, away), sentences.FELL_SILENT),
        ),
        hint=hint,
        culprits=tuple(
            a.process
            for a in late
            # Gone for good, or busy elsewhere; and not killed.
            if not disagree
            and case.outside(a.process)
            and case.ends[a.process].how in ("alive", CLEAN)
        ),
        waiting=tuple(sorted({*who, *(w.process for w in others)})),
        op=wait.op.call.op,
        locations=outside.locations(case, away),
        at_ns=wait.op.begin_ns,
        scope=Scope.of((*same, *others), roots=away),
        settles=()
        if elsewhere or disagree
        else ("collect the journals of the other nodes, if they were started",)
        if wait.unknown
        else outside.settles(case, away, early=False),
    )


def _missing_nodes(case: Case, attempt: Attempt, late: Sequence[Attempt]) -> Iterator[str]:
    """Who is missing, as far as that is known, and what these nodes do not agree on."""
    trace, arrived = case.trace, case.agents.arrived(attempt)
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
    names = []
    for one in (trace.processes[p] for p in processes):
        # As torchrun calls the node, where that tells more than the host's name.
        host = one.host if one.node in ("", None, one.host) else f"{one.node} ({one.host})"
        names.append(f"{one.pid or one.id[:8]} on {host}")
    return f"agent{'s' if len(names) > 1 else ''} {sentences.listed(names)}"
