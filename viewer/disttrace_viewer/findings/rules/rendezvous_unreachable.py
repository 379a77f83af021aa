"""A client dials an address where no traced process listens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from disttrace_viewer.evidence.endings import end_of
from disttrace_viewer.findings.case import Case
from disttrace_viewer.findings.finding import ERROR, NOTE, RuleFinding, Scope, why
from disttrace_viewer.findings.rules.claims import address
from disttrace_viewer.findings.rules.communicator_creation import may_come
from disttrace_viewer.trace.model import Store
from disttrace_viewer.trace.operation import Op
from disttrace_viewer.wording import sentences
from disttrace_viewer.wording.sentences import START_UP, ended


def find(case: Case) -> Iterator[RuleFinding]:
    """One finding per address that is dialled in vain."""
    dialled: dict[object, list[tuple[Op, Store]]] = {}
    answered: dict[object, int] = {}  # until when a server certainly answered there
    given_up: set[object] = set()  # who should listen could not, and ended: that is the failure
    for op, store in _of_tcp(case):
        where = address(case, store)
        if store.server and op.refused:
            if case.ends[op.process].over:
                given_up.add(where)
        elif store.server or op.status == "ok":
            until = case.evidence.until_ns(op.process) if store.server else op.end_ns or 0
            answered[where] = max(until, answered.get(where, 0))
        elif case.evidence.stuck(op) and (
            op.error is not None
            or not case.evidence.live
            or case.evidence.age_ns(op) >= case.evidence.stalled_after_ns
        ):
            dialled.setdefault(where, []).append((op, store))
    for where, clients in dialled.items():
        in_vain = [(o, s) for o, s in clients if answered.get(where, 0) < o.begin_ns]
        if in_vain and where not in given_up:
            yield _finding(case, in_vain)


def _finding(case: Case, clients: Sequence[tuple[Op, Store]]) -> RuleFinding:
    trace, evidence = case.trace, case.evidence
    who = [op.process for op, _ in clients]
    op, store = clients[0]
    job = trace.processes[op.process].job
    served = [
        (o, s)
        for o, s in case.rendezvous.constructors
        if s.server and not o.refused and trace.processes[o.process].job == job
    ]
    listening = [
        (o, s) for o, s in served if o.call.op == "TCPStore" and not evidence.ends[o.process].over
    ]
    culprits, absent, text, sure = _blame(case, clients, listening or served)
    dialling = [o for o, _ in clients]
    waits = [w for w in case.open() if w.op in dialling]
    to_come = text in (NOT_COME, NO_LISTENER, NO_AGENT)
    start = to_come and may_come(case, waits, culprits)
    roots = {*who, *culprits}
    if start:
        culprits, absent, sure = [], [], False
    waited_ns = max(evidence.age_ns(o) for o, _ in clients)
    return RuleFinding(
        kind="rendezvous_unreachable",
        severity=NOTE if start else ERROR,
        summary=f"{sentences.have_been(trace, who)} dialling {store.host}:{store.port}"
        f" ({sentences.line(op)}) for {sentences.span(waited_ns)}, where no traced process"
        f" listens: {text}.",
        because=why((not sure, START_UP)),
        hint="Compare MASTER_ADDR and MASTER_PORT (of nodes: --rdzv-endpoint) of all processes, see"
        " that rank 0 is started, and that no firewall is between the hosts.",
        culprits=tuple(culprits),
        absent_ranks=tuple(absent),
        waiting=tuple(p for p in who if p not in culprits),
        op=op.call.op,
        locations=evidence.locations(dialling),
        at_ns=op.begin_ns,
        scope=Scope.of(waits, roots=roots, members=who),
    )


def _blame(
    case: Case, clients: Sequence[tuple[Op, Store]], listeners: Sequence[tuple[Op, Store]]
) -> tuple[list[int], list[int], str, bool]:
    """Culprits, ranks without a process, the clause that show it, and whether that is sure."""
    before = [o for o, s in listeners if address(case, s) == address(case, clients[0][1])]
    if before:
        last = before[-1].process
        how = ended(end_of(case.evidence, last))
        return [], [], f"{case.trace.processes[last].label} listened there before and {how}", True
    elsewhere = _where_others_are(case, clients, listeners)
    if elsewhere is not None:
        op, store, there = elsewhere
        culprits, dialled = list[int](), ""
        here = len({o.process for o, _ in clients})
        if len(there) > here:
            culprits, dialled = [o.process for o, _ in clients], ", where the others dial"
        elif here > len(there):
            culprits, dialled = [op.process], ", where nobody else dials"
        at = f"{store.host}:{store.port}{dialled}"
        return culprits, [], f"{case.trace.processes[op.process].label} listens at {at}", True
    job = case.trace.processes[clients[0][0].process].job
    if all(case.trace.processes[op.process].is_agent for op, _ in clients):
        return [], [], NO_AGENT, False
    zero = [p for p in case.trace.processes if p.rank == 0 and p.job == job]
    made = _newest(case).get(zero[0].index) if zero else None
    if made is not None and made[0].status != "ok" and not made[1].server:
        own = made[1]
        here = address(case, own) == address(case, clients[0][1])
        at = "it" if here else f"{own.host}:{own.port}"
        return [], [], f"rank 0, which should listen, dials {at} itself", False
    if zero:
        return [zero[0].index], [], NOT_COME, True
    return [], [0], NO_LISTENER, False


def _where_others_are(
    case: Case, clients: Sequence[tuple[Op, Store]], listeners: Sequence[tuple[Op, Store]]
) -> tuple[Op, Store, set[int]] | None:
    """The listener at which most are who do not dial in vain, and who that is.

    One that all clients had reached before they dialled elsewhere, and where no other is now,
    was left for another rendezvous.
    """
    newest, here = _newest(case), {op.process for op, _ in clients}
    found: tuple[Op, Store, set[int]] | None = None
    for op, store in listeners:
        where = address(case, store)
        others = {p for p, (_, s) in newest.items() if address(case, s) == where}
        there = {op.process} | others - here
        if len(there) == 1 and here <= {
            op.process
            for op, store in _of_tcp(case)
            if op.status == "ok" and address(case, store) == where
        }:
            continue
        if found is None or len(there) > len(found[2]):
            found = op, store, there
    return found


def _newest(case: Case) -> dict[int, tuple[Op, Store]]:
    """The store that each process made last, and its constructor."""
    return {op.process: (op, store) for op, store in _of_tcp(case)}


def _of_tcp(case: Case) -> list[tuple[Op, Store]]:
    """Every TCP store that a process made, or was about to, with its constructor."""
    return [(o, store) for o, store in case.rendezvous.constructors if o.call.op == "TCPStore"]


NO_AGENT = "no agent that listens was seen"
NOT_COME = "rank 0, which should listen, has not come to it"
NO_LISTENER = "nobody claims rank 0, which should listen"
