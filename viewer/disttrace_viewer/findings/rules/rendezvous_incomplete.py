"""A rendezvous or the creation of a group waits for members that did not come."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from disttrace_viewer.evidence.mismatches import minority
from disttrace_viewer.evidence.rendezvous import Rendezvous
from disttrace_viewer.evidence.wait import RENDEZVOUS, Wait
from disttrace_viewer.findings.case import Case
from disttrace_viewer.findings.finding import ERROR, NOTE, RuleFinding, Scope, why
from disttrace_viewer.findings.rules import downgraded, ended_unseen, late_arrivals, outside
from disttrace_viewer.findings.rules.communicator_creation import may_come
from disttrace_viewer.findings.rules.ended_unseen import EXITED, KILLED, Unseen, unseen_of
from disttrace_viewer.findings.rules.outside import Doing
from disttrace_viewer.trace.model import JobTrace
from disttrace_viewer.trace.operation import Op
from disttrace_viewer.trace.process import Worker
from disttrace_viewer.wording import sentences


def find(case: Case) -> Iterator[RuleFinding]:
    """One finding per rendezvous that waits for a rank who waits for nothing, or is not there."""
    # Who finds the addresses of an earlier attempt is refused, by any rank that comes.
    met = (case.rendezvous.of(op) for op, _ in downgraded.met_before(case))
    refused = {rendezvous.key for rendezvous in met if rendezvous is not None}
    known: dict[Hashable, list[Wait]] = {}
    for wait in case.oldest():
        if wait.kind != RENDEZVOUS or wait in case.owner or not case.old(wait):
            continue
        if wait.exchange in refused:
            continue
        if new_group(case, wait):
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
    parent = case.evidence.sample.around(wait.op)
    return parent is not None and parent.call.op.startswith(("new_", "split_"))


def _elsewhere(case: Case, wait: Wait) -> list[Wait]:
    """Waits for the same group (size, other ranks) at another prefix, file or address."""
    mine = _of(case, wait)
    return [
        other
        for other in case.open()
        if other.kind == RENDEZVOUS
        and _where(theirs := _of(case, other)) != _where(mine)
        and _made_alike(case, wait, other)
        and theirs.expected == mine.expected
        and not set(theirs.arrived) & set(mine.arrived)
    ]


def _where(rendezvous: Rendezvous) -> tuple[object, ...]:
    return (rendezvous.store.place, rendezvous.store.prefix)


def _made_alike(case: Case, one: Wait, two: Wait) -> bool:
    """Whether both make a default group, or a group by hand in one store."""
    made = [case.evidence.sample.around(wait.op) for wait in (one, two)]
    if all(parent is not None and parent.call.op == "init_process_group" for parent in made):
        return one.op.call.op == two.op.call.op
    return _of(case, one).store.place == _of(case, two).store.place


def _finding(
    case: Case, wait: Wait, rendezvous: Rendezvous, sinks: list[int], elsewhere: list[Wait]
) -> RuleFinding:
    evidence = case.evidence
    same = [
        w
        for w in case.open()
        if w.kind == RENDEZVOUS
        and w.late_ns is None
        and (w.exchange == wait.exchange or (set(w.absent) & set(wait.absent) and not elsewhere))
    ]
    who = sorted({w.process for w in same} | {w.process for w in elsewhere})
    early = all(case.early(w) for w in same)
    unseen = _unseen(case, wait)
    ended = {rank for rank, o in unseen.items() if o.sure and o.worker.event in (EXITED, KILLED)}
    lost = [rank for rank in wait.absent if rank not in ended]
    size = case.evidence.trace.processes[wait.process].world_size
    beyond = size is not None and bool(wait.absent) and min(wait.absent) >= size
    world_size = size if beyond and wait.op.call.op == "TCPStore" else None
    top = evidence.top(wait.op)
    found = Incomplete(
        wait=wait,
        rendezvous=rendezvous,
        top=top,
        who=sorted({w.process for w in same}),
        waited_ns=max(evidence.age_ns(w.op) for w in same),
        missing=outside.doing(case, sinks),
        unseen={rank: (one.worker, one.sure) for rank, one in unseen.items()},
        elsewhere=[w.process for w in elsewhere],
        there=_of(case, elsewhere[0]) if elsewhere else None,
        world_size=world_size,
    )
    # A rank that requests something of another one is on its way here, once it has the answer.
    away = [s for s in sinks if case.at_work(s) is None]
    hopeless = elsewhere or ended or world_size is not None
    start = not hopeless and may_come(case, same, sinks)
    return RuleFinding(
        kind="rendezvous_incomplete",
        severity=NOTE if start else ERROR,
        summary=(start_text if start else summary)(case.evidence.trace, found),
        because=()
        if elsewhere
        else why(
            (lost or start or rendezvous.uncertain, sentences.START_UP),
            (early, sentences.SOON),
            (away != sinks, sentences.ON_THE_WAY),
            (outside.mute(case, sinks), sentences.MUTE),
        ),
        hint=CLIENTS
        if world_size is not None and not elsewhere
        else outside.stopped_hint(case, sinks) or _hint(wait, elsewhere, unseen),
        culprits=_minority(case, same, elsewhere)
        if elsewhere
        else ()
        if start
        else late_arrivals.answerable(late_arrivals.held_up_by(case, wait), away),
        absent_ranks=() if start or elsewhere or world_size is not None else wait.absent,
        waiting=tuple(who),
        op=top.call.op,
        locations=evidence.locations(w.op for w in [*same, *elsewhere])
        + outside.locations(case, sinks),
        at_ns=wait.op.begin_ns,
        scope=Scope(
            exchanges=frozenset(w.exchange for w in [*same, *elsewhere]),
            roots=frozenset(sinks),
            absent=frozenset((None, r) for r in wait.absent),
        ),
        settles=(settles(lost),)
        if lost and world_size is None
        else ()
        if elsewhere
        else outside.settles(case, sinks, early=early),
    )


def _minority(case: Case, same: list[Wait], elsewhere: list[Wait]) -> tuple[int, ...]:
    """Those at the place where fewer are; none where it is one against one, or not known."""
    where = {w.process: _where(_of(case, w)) for w in (*same, *elsewhere)}
    size = len(where)
    if size < 3:
        return ()
    return tuple(sorted(minority(where, size)))


def _unseen(case: Case, wait: Wait) -> Mapping[int, Unseen]:
    """What launchers know of the ranks that are absent."""
    trace = case.evidence.trace
    attempt, unseen = trace.processes[wait.process].attempt, unseen_of(trace)
    return {r: one for r in wait.absent if (one := unseen.get((attempt, r))) is not None}


def _hint(wait: Wait, elsewhere: list[Wait], unseen: Mapping[int, Unseen]) -> str:
    if elsewhere:
        return ONE_STORE
    if wait.absent and all(r in unseen and unseen[r].lived for r in wait.absent):
        return BEFORE_TORCH
    return STARTED if wait.absent else BEFORE


ONE_STORE = "Give all of them one store (init_method, MASTER_ADDR and MASTER_PORT) and prefix."
STARTED = "See whether these ranks were started, and on which host; read their output."
BEFORE_TORCH = (
    "Read what these ranks wrote, and see what they do before they use torch.distributed: an"
    " import, a lock, a compilation, a download."
)
CLIENTS = (
    "Compare the world_size of this store with the number of processes that make it, the one that"
    " serves it included: it waits until so many have connected."
)
BEFORE = "See what these ranks do before they join."
_SHOWN = 4
"""Ranks without a journal of which their launcher knows something."""


@dataclass(frozen=True, slots=True)
class Incomplete:
    """A rendezvous that a rank waits in."""

    wait: Wait
    rendezvous: Rendezvous
    top: Op
    """The operation that the program called."""
    who: Sequence[int]
    """Who waits there."""
    waited_ns: int
    missing: Mapping[int, Doing]
    """What those are at who should come."""
    unseen: Mapping[int, tuple[Worker, bool]]
    """What launchers know of absent ranks, and whether it is sure that they used nothing."""
    elsewhere: Sequence[int]
    """Who waits for the same group at another place."""
    there: Rendezvous | None
    """That other place."""
    world_size: int | None = None
    """The job's, where the store is made for more clients than that."""


def summary(trace: JobTrace, found: Incomplete) -> str:
    """Who waits where, who has arrived, and who has not."""
    wait, rendezvous = found.wait, found.rendezvous
    arrived = len(rendezvous.arrived)
    came = f"{arrived} of {rendezvous.expected}" if rendezvous.expected else str(arrived)
    came += f" {sentences.have(rendezvous.arrived)} arrived"
    came += f" ({_arrived(trace, rendezvous)})" if arrived else ""
    text = _missing(trace, found)
    if found.elsewhere:
        verb = "wait" if len(set(found.elsewhere)) > 1 else "waits"
        text = f"{sentences.processes(trace, found.elsewhere)} {verb} {_apart(trace, found)}"
    return (
        f"{sentences.have_been(trace, found.who)} waiting in {found.top.call.op}"
        f" ({sentences.line(wait.op)}) at {rendezvous.store.name or wait.op.call.op} for"
        f" {sentences.span(found.waited_ns)}: {came}; {text}."
    )


def _arrived(trace: JobTrace, rendezvous: Rendezvous) -> str:
    """Those who came: a group made by hand may number them in its own way."""
    known = [trace.processes[p].rank for p in rendezvous.arrived.values()]
    return sentences.ranks(
        rendezvous.arrived if None in known else trace.ranks_of({*rendezvous.arrived.values()})
    )


def start_text(trace: JobTrace, found: Incomplete) -> str:
    """How many have come, where the others may still be on their way."""
    arrived, expected = found.rendezvous.arrived, found.rendezvous.expected
    ranks = "ranks have" if len(arrived) != 1 else "ranks has" if expected != 1 else "rank has"
    came = f"{len(arrived)} of {expected} {ranks}" if expected else f"{len(arrived)} {ranks}"
    return (
        f"{came} come to {found.top.call.op} ({sentences.line(found.wait.op)}) in"
        f" {sentences.span(found.waited_ns)}; {_missing(trace, found)}."
    )


def _apart(trace: JobTrace, found: Incomplete) -> str:
    """How the two rendezvous points differ."""
    if found.there is None:
        return "elsewhere"
    stores = found.there.store, found.rendezvous.store
    if stores[0].place != stores[1].place:
        known = [trace.place_by_id.get(store.place) for store in stores]
        there, here = ("?" if place is None else place.name for place in known)
        return f"at {there}, not at {here}"
    there, here = ("/".join(part or "?" for part in store.prefix) for store in stores)
    return f"in the same store under the prefix {there!r}, not {here!r}"


def _missing(trace: JobTrace, found: Incomplete) -> str:
    late, parts = dict(found.wait.lateness), []
    came = [p for p in found.missing if p in late]
    never = {p: doing for p, doing in found.missing.items() if p not in late}
    if came:
        by = sentences.span(min(late[p] for p in came))
        who = sentences.processes(trace, came)
        parts.append(f"{who} arrived {by} after the others had given up")
    if never:
        where = outside.where(trace, never, named=True)
        parts.append(f"{sentences.processes(trace, never)} never joined{where}")
    known = list(found.unseen.items())[:_SHOWN]
    for rank, (worker, sure) in known:
        parts.append(f"rank {rank} {ended_unseen.words(worker, sure=sure)}")
    nowhere = set(found.wait.absent) - {rank for rank, _ in known}
    if nowhere and found.world_size is not None:
        parts.append(f"the world size is {found.world_size}, so that no further rank can come")
    elif nowhere:
        parts.append(f"no journal of {sentences.ranks(nowhere)} was found")
    if not parts and found.rendezvous.uncertain:
        parts.append("who is missing is not known, for the group was made by hand")
    return " and ".join(parts)


def settles(lost: Iterable[int]) -> str:
    """What would settle it where it is not known whether these ranks were started."""
    return f"{outside.journals(lost)}, if started"
