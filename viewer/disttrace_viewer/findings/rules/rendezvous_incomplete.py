"""A rendezvous or the creation of a group waits for members that did not come."""

from __future__ import annotations

from collections.abc import Hashable, Iterator

from disttrace_viewer.analysis.mismatches import minority
from disttrace_viewer.analysis.operation import frame
from disttrace_viewer.analysis.rendezvous import Rendezvous
from disttrace_viewer.analysis.wait_graph import RENDEZVOUS, Wait
from disttrace_viewer.findings.case import EARLY, Case
from disttrace_viewer.findings.finding import CERTAIN, LIKELY, Finding, Scope
from disttrace_viewer.findings.rules import late_arrivals, outside
from disttrace_viewer.findings.rules.unseen_workers import EXITED, Unseen, unseen_workers
from disttrace_viewer.wording import sentences

_SHOWN = 4
"""Ranks without a journal of which it is told what their launcher knows."""


def find(case: Case) -> Iterator[Finding]:
    """One finding per rendezvous that waits for somebody who waits for nothing, or is not there."""
    for wait in case.oldest():
        if wait.kind != RENDEZVOUS or wait in case.owner or not case.old(wait):
            continue
        if new_group(case, wait):
            continue  # a creation: see missing_participant
        elsewhere = _elsewhere(case, wait)
        sinks = [t for t in wait.targets if case.outside(t)]
        if elsewhere or sinks or wait.absent:
            yield _finding(case, wait, sinks, elsewhere)


def new_group(case: Case, wait: Wait) -> bool:
    """Whether a rendezvous is that of ``new_group``, which all members of the parent must call."""
    parent = case.rendezvous.parent(wait.op)
    return parent is not None and parent.call.op.startswith(("new_", "split_"))


def _elsewhere(case: Case, wait: Wait) -> list[Wait]:
    """Waits for the same group at another place: under another prefix of the same store, in
    another file, or at another store's address. The same group: of the same size, with other ranks.
    """
    mine = case.rendezvous.of(wait.op)
    found = []
    for other in case.open():
        theirs = case.rendezvous.of(other.op) if other.kind == RENDEZVOUS else None
        if (
            mine is not None
            and theirs is not None
            and _where(theirs) != _where(mine)
            and _made_alike(case, wait, other)
            and theirs.expected == mine.expected
            and not set(theirs.arrived) & set(mine.arrived)
        ):
            found.append(other)
    return found


def _where(rendezvous: Rendezvous) -> tuple[object, ...]:
    return (rendezvous.store.place, rendezvous.store.prefix)


def _made_alike(case: Case, one: Wait, two: Wait) -> bool:
    """Whether both make a default group, or a group by hand in one store."""
    made = [case.rendezvous.parent(wait.op) for wait in (one, two)]
    if all(parent is not None and parent.call.op == "init_process_group" for parent in made):
        return one.op.call.op == two.op.call.op
    here, there = case.rendezvous.of(one.op), case.rendezvous.of(two.op)
    assert here is not None
    assert there is not None
    return here.store.place == there.store.place


def _finding(case: Case, wait: Wait, sinks: list[int], elsewhere: list[Wait]) -> Finding:
    evidence, trace = case.evidence, case.evidence.trace
    rendezvous = case.rendezvous.of(wait.op)
    assert rendezvous is not None
    same = [
        w
        for w in case.open()
        if w.kind == RENDEZVOUS
        and w.late_ns is None
        and (w.exchange == wait.exchange or (set(w.absent) & set(wait.absent) and not elsewhere))
    ]
    who = sorted({w.process for w in same} | {w.process for w in elsewhere})
    arrived = len(rendezvous.arrived)
    came = f"{arrived} of {rendezvous.expected}" if rendezvous.expected else str(arrived)
    came += f" {'has' if arrived == 1 else 'have'} arrived"
    came += f" ({sentences.ranks(rendezvous.arrived)})" if arrived else ""
    at = sentences.place(frame(trace, wait.op))
    age = sentences.span(max(evidence.age_ns(w.op) for w in same))
    text = _missing(case, wait, sinks)
    if elsewhere:
        others = [w.process for w in elsewhere]
        theirs = case.rendezvous.of(elsewhere[0].op)
        verb = "wait" if len(set(others)) > 1 else "waits"
        text = f"{sentences.processes(trace, others)} {verb} {_apart(case, theirs, rendezvous)}"
    early = all(case.early(w) for w in same)
    ended = {o.rank for o in _unseen(case, wait) if o.sure and o.worker.event == EXITED}
    lost = [rank for rank in wait.absent if rank not in ended]
    name = rendezvous.store.name or wait.op.call.op
    label = sentences.processes(trace, {w.process for w in same})
    return Finding(
        kind="rendezvous_incomplete",
        summary=(
            f"{sentences.capital(label)} {sentences.have(len({w.process for w in same}))} been"
            f" waiting in {evidence.top(wait.op).call.op} ({at}) at {name} for {age}: {came};"
            f" {text}."
        ),
        certainty=CERTAIN if elsewhere or not (lost or early) else LIKELY,
        hint=_hint(wait, elsewhere),
        culprits=_minority(case, same, elsewhere)
        if elsewhere
        else late_arrivals.answerable(case, wait, sinks),
        absent_ranks=() if elsewhere else wait.absent,
        waiting=tuple(who),
        op=evidence.top(wait.op).call.op,
        locations=evidence.locations(w.op for w in [*same, *elsewhere])
        + outside.locations(case, sinks),
        at_ns=wait.op.begin_ns,
        scope=Scope(
            exchanges=frozenset(w.exchange for w in [*same, *elsewhere]),
            roots=frozenset(sinks),
            absent=frozenset((None, r) for r in wait.absent),
        ),
        settles=(f"collect the journals of {sentences.ranks(lost)}, if started",)
        if lost
        else (EARLY,)
        if early and not elsewhere
        else (),
    )


def _apart(case: Case, theirs: Rendezvous | None, mine: Rendezvous) -> str:
    """How two rendezvous points differ."""
    if theirs is None:
        return "elsewhere"
    if theirs.store.place != mine.store.place:
        places = case.evidence.trace.place_by_id
        known = [places.get(m.store.place) for m in (theirs, mine)]
        there, here = ("?" if place is None else place.name for place in known)
        return f"at {there}, not at {here}"
    there = "/".join(p or "?" for p in theirs.store.prefix)
    here = "/".join(p or "?" for p in mine.store.prefix)
    return f"in the same store under the prefix {there!r}, not {here!r}"


def _minority(case: Case, same: list[Wait], elsewhere: list[Wait]) -> tuple[int, ...]:
    """Those at the place where fewer are; nobody where it is one against one, or where nobody knows
    which of the missing are where.
    """
    where = {w.process: _place(case, w) for w in (*same, *elsewhere)}
    size = len(where)
    if size < 3:
        return ()
    return tuple(sorted(minority(where, size)))


def _place(case: Case, wait: Wait) -> Hashable:
    rendezvous = case.rendezvous.of(wait.op)
    return None if rendezvous is None else _where(rendezvous)


def _missing(case: Case, wait: Wait, sinks: list[int]) -> str:
    parts = []
    late = dict(wait.lateness)
    came = [p for p in sinks if p in late]
    never = [p for p in sinks if p not in late]
    trace = case.evidence.trace
    if came:
        by = sentences.span(min(late[p] for p in came))
        parts.append(
            f"{sentences.processes(trace, came)} arrived {by} after the others had given up"
        )
    if never:
        parts.append(
            f"{sentences.processes(trace, never)} never joined"
            f"{outside.where(case, never, named=True)}"
        )
    known = _unseen(case, wait)
    parts += [f"rank {one.rank} {one.words}" for one in known[:_SHOWN]]
    nowhere = set(wait.absent) - {one.rank for one in known[:_SHOWN]}
    if nowhere:
        parts.append(f"no journal of {sentences.ranks(nowhere)} was found")
    return " and ".join(parts)


def _unseen(case: Case, wait: Wait) -> list[Unseen]:
    """What launchers know of the ranks that are absent."""
    trace = case.evidence.trace
    attempt, unseen = trace.processes[wait.process].attempt, unseen_workers(trace)
    return [one for rank in wait.absent if (one := unseen.get((attempt, rank))) is not None]


def _hint(wait: Wait, elsewhere: list[Wait]) -> str:
    if elsewhere:
        return "Give all of them one store (init_method, MASTER_ADDR and MASTER_PORT) and prefix."
    if wait.absent:
        return "See whether these ranks were started, and on which host; read their output."
    return "See what these ranks do before they join."
