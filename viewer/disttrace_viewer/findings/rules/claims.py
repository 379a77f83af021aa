"""Claims at a rendezvous that cannot all be true: one rank twice, several world sizes."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence

from disttrace_viewer.analysis.sample import STORES, together
from disttrace_viewer.evidence import mismatches
from disttrace_viewer.evidence.wait import COLLECTIVE, MESSAGE, RENDEZVOUS, Wait
from disttrace_viewer.findings.case import Case
from disttrace_viewer.findings.finding import RuleFinding, Scope
from disttrace_viewer.findings.rules import outside
from disttrace_viewer.merge.store_servers import is_loopback
from disttrace_viewer.trace.model import JobTrace, Store
from disttrace_viewer.trace.operation import Op
from disttrace_viewer.trace.values import dataclass
from disttrace_viewer.wording import sentences


@dataclass(frozen=True, slots=True)
class Join:
    """One process on its way into a default group: the store it makes and what it claims."""

    op: Op
    store: Store
    address: Hashable
    """Where it means to meet: port and host (its own boot for a loopback address), or a path."""
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
        parent = case.sample.around(op)
        hand_made = parent is None and op.call.op not in STORES
        together = parent is not None and parent.call.op in ("rendezvous", "init_process_group")
        if not (by_hand if hand_made else together and op.call.op in STORES):
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
    """What makes two stores meet, whether or not the rendezvous came about."""
    process = case.trace.processes[store.process]
    if store.path is not None:
        return ("file", store.path)
    host = process.boot_id if is_loopback(store.host) else str(store.host).lower()
    return ("tcp", host, store.port)


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
            yield _duplicate(case, rank, rivals, _unclaimed(all_of), waits)


def _rivals(case: Case, found: Sequence[Join]) -> list[Join]:
    """The newest join of each process; those that lived together with another one."""
    gone = case.evidence.followed
    newest = {join.op.process: join for join in found if join.op.process not in gone}
    since = {p: case.trace.processes[p].start_ns for p in newest}
    until = {p: case.evidence.until_ns(p) for p in newest}

    def met(p: int, q: int) -> bool:
        return p != q and since[p] <= until[q] and since[q] <= until[p]

    return [join for p, join in newest.items() if any(met(p, q) for q in newest)]


def _unclaimed(found: Sequence[Join]) -> list[int]:
    """Ranks of the world that none claims."""
    world = max((j.world_size or 0 for j in found), default=0)
    return sorted(set(range(world)) - {j.rank for j in found if j.rank is not None})


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
