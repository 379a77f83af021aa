"""Which process waits for which: every blocking operation as a wait with its targets.

Edges follow the wait-for graphs of MPI deadlock detection (AND/OR model): a collective waits for
all members that have not begun it, a message for its other end, a receive from any source for any
possible sender, a key for the one that sets it, a constructor of a group for its other members.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence, Set
from typing import Any

from disttrace.journal.format import COMPOSED
from disttrace_viewer.analysis.sample import BATCHES, message_stream
from disttrace_viewer.evidence import polling
from disttrace_viewer.evidence.evidence import Evidence
from disttrace_viewer.evidence.rendezvous import Agents, RendezvousIndex
from disttrace_viewer.evidence.store_keys import Setters, taken_connections
from disttrace_viewer.evidence.wait import (
    COLLECTIVE,
    LATE_NS,
    MESSAGE,
    NODES,
    OTHER,
    RENDEZVOUS,
    SERVER,
    Wait,
    given_up_ns,
    lateness,
)
from disttrace_viewer.trace.model import Stream
from disttrace_viewer.trace.operation import Op, because_of_others, is_closed
from disttrace_viewer.trace.values import replace, together


def waits(
    evidence: Evidence, index: RendezvousIndex, agents: Agents, setters: Setters
) -> tuple[Wait, ...]:
    """Every wait of a trace that lasts too long or was ended by its own waiting."""
    side, processes = _side_threads(evidence), evidence.trace.processes
    chosen = {
        _carrier(evidence, op): op
        for op in evidence.blocking
        # Agents have a rule of their own, and wait at the end for as long as any workers run. Who
        # took its part in an operation away with it waits for none there.
        if not (
            processes[op.process].is_agent and (op.call.kind == COMPOSED or op.parent is not None)
        )
        and op.id not in evidence.left
        and evidence.stuck(op)
    }
    taken = taken_connections(evidence)
    behind = {op: taken[inner.id] for op, inner in chosen.items() if inner.id in taken}
    by_kind = together((op.call.kind, op) for op in chosen if op not in behind)
    found: list[Wait] = []
    found += _collectives(evidence, by_kind.pop("collective", []))
    found += _messages(evidence, by_kind.pop("message", []))
    keys = by_kind.pop("store", [])
    for op in by_kind.pop("constructor", []):
        found.append(polling.at_still_server(evidence, _rendezvous(index, op), chosen[op]))
    for rest in by_kind.values():
        found += [_alone(op) for op in rest]
    found += _nodes(evidence, agents)
    waiting = {op.process for op in (*keys, *behind) if op.id not in side}
    waiting |= {wait.process for wait in found}
    found += [
        replace(wait, side=wait.op.id in side) for wait in polling.keys(setters, keys, waiting)
    ]
    still = {wait.op.id for wait in found if wait.kind == SERVER}
    polls = polling.polls(setters, waiting)
    polled = {wait.op.id: wait for wait in polls if wait.op.id not in still}
    found = [*(wait for wait in found if wait.op.id not in polled), *polled.values()]
    for op, holder in behind.items():
        (wait,) = polling.keys(setters, [holder], waiting)
        found.append(replace(wait, op=op, behind=holder))
    return tuple(sorted(_in_time(found), key=lambda w: (w.process, w.op.number)))


def _in_time(found: Sequence[Wait]) -> Iterator[Wait]:
    """The waits; one that began when all for which it waits had given up a wait for this very
    process, be it in another exchange, is late: both never waited at one time.
    """
    gave_up: dict[int, list[tuple[int, frozenset[int]]]] = {}
    shared: dict[int, frozenset[int]] = {}  # members of an exchange share their targets
    for wait in found:
        over_ns = None if is_closed(wait.op.error) else given_up_ns([wait.op])
        if over_ns is not None:
            targets = shared.setdefault(id(wait.targets), frozenset(wait.targets))
            gave_up.setdefault(wait.process, []).append((over_ns, targets))
    first_ns = min((ns for given in gave_up.values() for ns, _ in given), default=0)
    for wait in found:
        by_ns = wait.op.begin_ns - first_ns
        for target in wait.targets if gave_up and by_ns > LATE_NS else ():
            given = gave_up.get(target, ())
            over_ns = next((ns for ns, targets in given if wait.process in targets), None)
            by_ns = min(by_ns, 0 if over_ns is None else wait.op.begin_ns - over_ns)
            if by_ns <= LATE_NS:
                break
        is_late = bool(gave_up and wait.targets) and by_ns > LATE_NS
        yield replace(wait, targets=(), late_ns=by_ns) if is_late else wait


def _side_threads(evidence: Evidence) -> frozenset[tuple[int, int]]:
    """Blocking store operations of threads that have no part in their process's exchanges.

    What a process is at is known by the threads that do the exchanges of its groups; where none
    does any, or they have done nothing since the main thread began to wait, by the main thread.
    """
    busy = {(op.process, op.thread) for op in evidence.blocking}
    active = evidence.sample.active

    def beside(op: Op) -> bool:
        threads = evidence.at_work.get(op.process, frozenset())
        if op.thread != 0 or op.thread in threads:
            return evidence.beside(op.process, op.thread)
        return any(
            (op.process, thread) in busy or active.get((op.process, thread), 0) > op.begin_ns
            for thread in threads
        )

    found = (op for op in evidence.blocking if op.call.kind == "store")
    return frozenset(op.id for op in found if beside(op))


def _nodes(evidence: Evidence, agents: Agents) -> Iterator[Wait]:
    for attempt in agents.waiting:
        if not evidence.stuck(attempt.op):
            continue
        arrived = agents.arrived(attempt)
        least = attempt.least or len(arrived) + 1
        missing = len(arrived) < least
        disagree = len({(a.least, a.most) for a in arrived}) > 1
        late = agents.late(attempt) if missing else ()
        yield Wait(
            attempt.op,
            NODES if missing or disagree else OTHER,
            ("nodes", attempt.place or attempt.op.id, attempt.run),
            tuple(a.process for a in late),
            unknown=disagree or len(arrived) + len(late) < least,
            arrived=tuple(a.process for a in arrived),
        )


def _carrier(evidence: Evidence, op: Op) -> Op:
    """What C++ code does in a store is part of the operation that its thread is in."""
    if op.call.kind != "store" or op.call.origin != "c++":
        return op
    around = [
        o
        for o in evidence.sample.of_process[op.process]
        if o.pending
        and o.thread == op.thread
        and o.number < op.number
        and o.call.kind not in ("store", "composed")
        and o.holds
    ]
    return around[-1] if around else op


def _collectives(evidence: Evidence, chosen: Sequence[Op]) -> Iterator[Wait]:
    numbered = [op for op in chosen if op.seq is not None and op.call.group is not None]
    known = {op.id for op in numbered}
    yield from (_alone(op) for op in chosen if op.id not in known)
    if not numbered:
        return
    inside = _inside(evidence, numbered)
    # All who wait in one share what it lacks, as one object: members may be thousands.
    shared: dict[Hashable, tuple[Wait, Mapping[int, int]]] = {}
    for op in numbered:
        group, backend = op.call.stream
        key = (COLLECTIVE, group, backend, op.seq or 0)
        if key not in shared:
            size = evidence.trace.groups[group or 0].size or 0
            wait = _exchange(evidence, op, key, inside[op.call.stream, op.seq or 0], range(size))
            shared[key] = wait, dict(wait.lateness)
        wait, late = shared[key]
        yield _of(wait, op, late)


def _inside(
    evidence: Evidence, numbered: Sequence[Op]
) -> Mapping[tuple[Stream, int], Mapping[int, Op]]:
    """The operations of the exchanges that some are in, by group rank."""
    found: dict[tuple[Stream, int], dict[int, Op]] = {}
    held = _held_back(evidence)
    for stream, seq in {(op.call.stream, op.seq or 0) for op in numbered}:
        members = evidence.sample.members(stream, seq)
        if held:
            members = {r: op for r, op in members.items() if op.id not in held}
        found[stream, seq] = members
    for op in evidence.raised_in_call:  # they are in no table of exchanges
        here = found.get((op.call.stream, op.seq or 0))
        if here is not None and op.call.group_rank is not None:
            here.setdefault(op.call.group_rank, op)
    return found


def _exchange(
    evidence: Evidence, op: Op, key: tuple[Any, ...], inside: Mapping[int, Op], ranks: Iterable[int]
) -> Wait:
    """What an exchange lacks: those of ``ranks`` who are not ``inside``, or came too late."""
    assert op.call.group is not None
    late = lateness(evidence, inside.values())
    in_time = {rank: one.process for rank, one in inside.items() if one.process not in late}
    missing = [rank for rank in ranks if rank not in in_time]
    targets, absent = _resolve(evidence, op.call.group, missing)
    return Wait(
        op,
        key[0],
        key,
        targets,
        absent,
        arrived=tuple(sorted({*in_time.values()})),
        lateness=tuple(sorted(late.items())),
    )


def _of(wait: Wait, op: Op, late: Mapping[int, int]) -> Wait:
    """The wait of another one in the same exchange; who came too late waits for none."""
    if op.process in late:
        return replace(wait, op=op, targets=(), absent=(), late_ns=late[op.process])
    return replace(wait, op=op)


def _held_back(evidence: Evidence) -> set[tuple[int, int]]:
    """Operations that a device has not reached: others are before them, or the process ended."""
    first: dict[int, Op] = {}
    held = set(evidence.left)
    for op in evidence.sample.pending:
        if op.on_device and op.id not in evidence.over_unseen:
            before = first.setdefault(op.process, evidence.stuck_devices.get(op.process, op))
            if before is not op and op not in _launch(evidence, before):
                held.add(op.id)
    return held


def _launch(evidence: Evidence, op: Op) -> Sequence[Op]:
    """Messages in flight that were launched as one: all end or none (AND of the AND/OR model)."""
    around = evidence.sample.around(op)
    if op.parent is None or not op.on_device:
        return (op,)
    # Of what was launched only the newest is kept around its messages once it has returned, and
    # nothing else returns while those that it issued are in flight.
    if not op.call.asynchronous if around is None else around.call.op not in BATCHES:
        return (op,)
    kept = evidence.sample.of_process[op.process]
    return [one for one in kept if one.parent == op.parent and one.pending]


def _lacking(evidence: Evidence, op: Op, held: Set[tuple[int, int]]) -> list[Op]:
    """Of a launch the messages that hold it up: whose other end was not posted; else itself."""
    found = []
    for one in _launch(evidence, op):
        partner = evidence.sample.other_end(one)
        if one.peer is not None and (partner is None or partner.id in held):
            found.append(one)
    return found or [op]


def _resolve(
    evidence: Evidence, group: int, missing: Sequence[int]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Processes, and global ranks without one, behind group ranks; of a rank that was only reported
    the process that waits where it does, so what holds up one holds up the other.
    """
    targets, absent = [], []
    for rank in missing:
        known = evidence.trace.groups[group].global_rank(rank)
        process = evidence.process_of(group, rank)
        if process is None and known is not None:
            process = evidence.trace.waits_with.get(known)
        if process is not None:
            targets.append(process)
        else:
            absent.append(rank if known is None else known)
    return tuple(dict.fromkeys(targets)), tuple(absent)


def _messages(evidence: Evidence, chosen: Sequence[Op]) -> Iterator[Wait]:
    held = _held_back(evidence)
    for found in chosen:
        without = _lacking(evidence, found, held)
        op, group = without[0], without[0].call.group
        several = len({one.peer for one in without}) > 1
        if group is None:
            yield _alone(op)
        elif several and "older" in evidence.trace.processes[op.process].lacks:
            # Which of them are through with theirs, a ring that was overwritten does not tell.
            ends = [_message(evidence, one, held) for one in without]
            targets = tuple(dict.fromkeys(t for end in ends for t in end.targets))
            absent = tuple(dict.fromkeys(r for end in ends for r in end.absent))
            yield replace(ends[0], targets=targets, absent=absent, any_of=True)
        elif op.peer is None:
            size = evidence.trace.groups[group].size or 0
            senders = [rank for rank in range(size) if rank != op.call.group_rank]
            targets, absent = _resolve(evidence, group, senders)
            yield Wait(op, MESSAGE, (MESSAGE, *op.id), targets, absent, any_of=True)
        else:
            yield _message(evidence, op, held)


def _message(evidence: Evidence, op: Op, held: Set[tuple[int, int]]) -> Wait:
    """A message is an exchange of two; one end has no number where it raised in its call."""
    peer, stream = op.peer or 0, message_stream(op)
    key = (MESSAGE, *(op.id if stream is None or op.seq is None else (*stream, op.seq)))
    partner = evidence.sample.other_end(op) or _raised_end(evidence, op)
    inside = {-1: op}
    if partner is not None and partner.id not in held:
        inside[peer] = partner
    wait = _exchange(evidence, op, key, inside, [peer])
    return _of(wait, op, dict(wait.lateness))


def _raised_end(evidence: Evidence, op: Op) -> Op | None:
    """The other end of a message, if one of both raised in its call, long after the other had."""
    for other in (one for failed in evidence.failed.values() for one in failed):
        if _faces(op, other) and (other.refused or op.refused) and because_of_others(other):
            after = other.begin_ns - (op.end_ns or other.begin_ns)
            before = op.begin_ns - (other.end_ns or op.begin_ns)
            if max(after, before) > LATE_NS:
                return other
    return None


def _alone(op: Op) -> Wait:
    """Of what it is not known for which it waits."""
    return Wait(op, OTHER, (OTHER, *op.id))


def _faces(one: Op, two: Op) -> bool:
    """Whether they are the two ends of one direction in one group."""
    a, b = one.call, two.call
    return (
        a.kind == b.kind == "message"
        and a.group == b.group
        and a.op != b.op
        and (one.peer, two.peer) == (b.group_rank, a.group_rank)
    )


def _rendezvous(index: RendezvousIndex, op: Op) -> Wait:
    rendezvous = index.of(op)
    if rendezvous is None:
        return _alone(op)
    late_ns = rendezvous.lateness.get(op.process)
    return Wait(
        op,
        RENDEZVOUS,
        rendezvous.key,
        () if late_ns is not None else rendezvous.late,
        () if late_ns is not None else rendezvous.absent,
        unknown=rendezvous.expected is None or rendezvous.uncertain,
        arrived=rendezvous.came,
        late_ns=late_ns,
        lateness=tuple(sorted(rendezvous.lateness.items())),
    )
