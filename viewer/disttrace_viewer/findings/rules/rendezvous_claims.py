"""Claims at a rendezvous that cannot all be true: one rank twice, several world sizes, an address
where none listens.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence

from disttrace_viewer.analysis.sample import STORES
from disttrace_viewer.evidence import mismatches
from disttrace_viewer.evidence.endings import end_of
from disttrace_viewer.evidence.wait import COLLECTIVE, MESSAGE, RENDEZVOUS, Wait
from disttrace_viewer.findings.case import Case
from disttrace_viewer.findings.finding import ERROR, NOTE, RuleFinding, Scope, why
from disttrace_viewer.findings.rules import outside
from disttrace_viewer.findings.rules.communicator_creation import may_come
from disttrace_viewer.merge.store_servers import scope
from disttrace_viewer.trace.model import JobTrace, Store
from disttrace_viewer.trace.operation import Op
from disttrace_viewer.trace.values import dataclass, together
from disttrace_viewer.wording import sentences


@dataclass(frozen=True, slots=True)
class Join:
    """One process on its way into a default group: the store it makes and what it claims."""

    op: Op
    store: Store
    address: Hashable
    rank: int | None
    world_size: int | None
    open: bool
    """It waits there, or failed there."""


def joins(case: Case, *, by_hand: bool = False) -> Iterator[Join]:
    """Every store that a member constructed for a rendezvous, by process and number; ``by_hand``:
    also every group (``ProcessGroupGloo(store, rank, size)``) that was made of a store directly.

    Agents are no members: under a static rendezvous (plain ``torchrun``) theirs hosts the store at
    the workers' own address, and counts nodes where they count ranks. It is the role that tells
    them apart; with as many nodes as ranks the numbers are equal.
    """
    for op, store in case.rendezvous.constructors:
        if not by_hand and op.call.op not in STORES:
            continue
        parent = case.sample.around(op)
        hand_made = parent is None and op.call.op not in STORES
        together = parent is not None and parent.call.op in ("rendezvous", "init_process_group")
        if not (hand_made or (together and op.call.op in STORES)):
            continue
        if case.trace.processes[op.process].is_agent:
            continue
        size = op.call.args.get("size" if hand_made else "world_size")
        yield Join(
            op=op,
            store=store if store.base is None else case.trace.stores[store.base],
            address=(op.call.op, store.place, store.prefix) if hand_made else address(case, store),
            rank=case.rendezvous.claim(op),
            world_size=size if isinstance(size, int) and size > 0 else None,
            open=op.pending or op.error is not None,
        )


def address(case: Case, store: Store) -> Hashable:
    """Where a store means to meet others."""
    return scope(store, case.trace.processes[store.process])


def find_duplicates(case: Case) -> Iterator[RuleFinding]:
    """One finding per rank that is claimed twice, where a rank waits or fails over it."""
    # Of any free port no process can meet another there.
    made = [join for join in joins(case, by_hand=True) if join.store.port != 0]
    everybody = together((join.address, join) for join in made)
    claims = together(((one.address, one.rank), one) for one in made if one.rank is not None)
    for (address, rank), found in sorted(claims.items(), key=lambda item: item[0][1]):
        rivals = _rivals(case, found) if len(found) > 1 else []
        if len(rivals) < 2:
            continue
        all_of = everybody[address]
        members = {join.op.process for join in all_of}
        waits = [w for w in case.open() if w.kind == RENDEZVOUS and w.process in members]
        who = {join.op.process for join in rivals}
        hang = [w for w in case.open() if w.kind in (COLLECTIVE, MESSAGE) and case.old(w)]
        if any(w.process in who for w in hang):  # they came through, and meet none now
            waits += [w for w in hang if w.process in members]
        if waits or any(join.open for join in all_of):
            world = max((join.world_size or 0 for join in all_of), default=0)
            unclaimed = sorted({*range(world)} - {join.rank for join in all_of})
            yield _duplicate(case, rank, rivals, unclaimed, waits)


def _rivals(case: Case, found: Sequence[Join]) -> list[Join]:
    """The newest join of each process; those that lived together with another one."""
    gone = case.evidence.followed
    newest = {join.op.process: join for join in found if join.op.process not in gone}
    since = {p: case.trace.processes[p].start_ns for p in newest}
    until = {p: case.evidence.until_ns(p) for p in newest}

    def met(p: int, q: int) -> bool:
        return p != q and since[p] <= until[q] and since[q] <= until[p]

    return [join for p, join in newest.items() if any(met(p, q) for q in newest)]


def _duplicate(
    case: Case, rank: int, rivals: Sequence[Join], left: Sequence[int], waits: Sequence[Wait]
) -> RuleFinding:
    who = [join.op.process for join in rivals]
    waiting = sorted({w.process for w in waits} - set(who))
    processes = [case.trace.processes[p] for p in who]
    pids = [f"pid {one.pid} on {one.host}" for one in processes]
    no_culprit = f"; nobody claims {sentences.ranks(left)}" if left else ""
    started = ""
    for one in processes:
        parent = case.trace.parent_of(one)
        if parent is not None and parent.index in who:
            where = case.evidence.stands(parent.index)
            at = "" if where is None else f", which stands at {sentences.is_at(where)}"
            started += f"; pid {one.pid} was started by pid {parent.pid}{at}"
    return RuleFinding(
        kind="duplicate_rank",
        summary=f"{len(who)} processes claim rank {rank} at {rivals[0].store.name}:"
        f" {sentences.listed(pids)}{started}{no_culprit}.",
        hint="Give each process a RANK of its own; look for a launcher that was started twice, or"
        " for a rank left over from an earlier run.",
        culprits=tuple(who),
        waiting=tuple(waiting),
        op=rivals[0].op.call.op,
        locations=case.evidence.locations(join.op for join in rivals)
        + outside.locations(case, who),
        at_ns=max(join.op.begin_ns for join in rivals),
        scope=Scope.of(waits, roots=who, absent=left, members=who),
    )


def find_world_sizes(case: Case) -> Iterator[RuleFinding]:
    """One ``group_mismatch`` per rendezvous place where the claims differ and a rank waits."""
    found: dict[Hashable, dict[int, Join]] = {}
    for join in joins(case):
        if join.world_size is not None:
            found.setdefault(join.address, {})[join.op.process] = join
    for claims in found.values():
        values = {p: join.world_size for p, join in claims.items()}
        waits = [w for w in case.open() if w.process in claims]
        waiting = sorted({w.process for w in waits})
        harmed = waiting or any(join.open for join in claims.values())
        if len(set(values.values())) < 2 or not harmed:
            continue
        odd = sorted(mismatches.minority(values, len(values)))
        order = sorted(claims, key=lambda p: (p not in odd, p))
        first = next(iter(claims.values()))
        yield RuleFinding(
            kind="group_mismatch",
            summary=world_size_summary(case.trace, {p: values[p] for p in order}, first.store.name),
            hint="Give all processes one WORLD_SIZE; compare the environments that start them.",
            culprits=tuple(odd),
            waiting=tuple(p for p in waiting if p not in odd),
            op=first.op.call.op,
            locations=case.evidence.locations(claims[p].op for p in order),
            at_ns=first.op.begin_ns,
            scope=Scope.of(waits, roots=claims, members=claims),
        )


def world_size_summary(trace: JobTrace, claims: Mapping[int, int | None], at: str | None) -> str:
    """``claims``: by process; ``at``: where they meet."""
    reported = ((str(size), process) for process, size in claims.items())
    text = sentences.sides(trace, reported, "claims", "claim")
    return f"The members of the default group disagree on its world size at {at}: {text}."


def find_unreachable(case: Case) -> Iterator[RuleFinding]:
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
            yield _unreachable(case, in_vain)


def _unreachable(case: Case, clients: Sequence[tuple[Op, Store]]) -> RuleFinding:
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
        because=why((not sure, sentences.START_UP)),
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
        how = sentences.ended(end_of(case.evidence, last))
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
    made = {o.process: (o, s) for o, s in _of_tcp(case)}.get(zero[0].index) if zero else None
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
    """The listener at which most are who do not dial in vain, and who that is; none that all
    clients had reached, and where no other is now: it was left for another rendezvous."""
    here, found = {op.process for op, _ in clients}, list[tuple[Op, Store, set[int]]]()
    made = [(o, address(case, s)) for o, s in _of_tcp(case)]
    newest = {o.process: where for o, where in made}
    for op, store in listeners:
        where = address(case, store)
        met = {o.process for o, at in made if at == where and o.status == "ok"}
        there = {op.process} | {p for p, at in newest.items() if at == where} - here
        if len(there) > 1 or not here <= met:
            found.append((op, store, there))
    return max(found, key=lambda one: len(one[2]), default=None)


def _of_tcp(case: Case) -> list[tuple[Op, Store]]:
    """Every TCP store that a process made, or was about to, with its constructor."""
    return [(o, store) for o, store in case.rendezvous.constructors if o.call.op == "TCPStore"]


NO_AGENT = "no agent that listens was seen"
NOT_COME = "rank 0, which should listen, has not come to it"
NO_LISTENER = "nobody claims rank 0, which should listen"
