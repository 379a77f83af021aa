"""Everybody is in, with equal arguments, and nobody returns: network, device or library."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from disttrace.journal.format import REPLAYED
from disttrace_viewer.analysis.error_texts import is_closed
from disttrace_viewer.analysis.process_ends import CASCADE, CLEAN, OWN
from disttrace_viewer.evidence.blocking import LED
from disttrace_viewer.evidence.recorded import DRAINING
from disttrace_viewer.evidence.waits import importing
from disttrace_viewer.evidence.waits.wait import (
    COLLECTIVE,
    MESSAGE,
    OTHER,
    RENDEZVOUS,
    SERVER,
    Wait,
)
from disttrace_viewer.findings import troubles
from disttrace_viewer.findings.case import Case
from disttrace_viewer.findings.finding import LIKELY, Finding, Scope
from disttrace_viewer.findings.rules import outside
from disttrace_viewer.wording.findings import no_progress as words
from disttrace_viewer.wording.findings import troubles as trouble_words

_MOST_BETWEEN_TRIES_NS = 60_000_000_000


def find(case: Case) -> Iterator[Finding]:
    """One finding per exchange that is complete, old, and not over; and per store whose server is
    still.

    What an operation waits for that is seen only from outside is not known; it comes last.
    """
    for wait in case.oldest():
        if wait.kind == SERVER and wait not in case.owner and case.old(wait):
            yield _unanswered(case, wait)
    apart = [w for w in case.oldest() if not case.knows("sequence", [w.process]) and case.old(w)]
    apart = [w for w in apart if w.kind == OTHER and w not in case.owner]
    if len(apart) > 1:
        yield _apart(case, apart)
    for kinds in ((COLLECTIVE, MESSAGE, RENDEZVOUS), (OTHER,)):
        for wait in case.oldest():
            if wait.kind not in kinds or not wait.complete or wait in case.owner:
                continue
            if not case.knows("time", [wait.process]):
                continue  # whether it moves takes two moments
            if not case.old(wait) or _ended(case, wait) or _drains(case, wait):
                continue
            if not _just_complete(case, wait) and not _host_is_ahead(case, wait):
                yield _finding(case, wait)


def _drains(case: Case, wait: Wait) -> bool:
    """Whether all ranks destroy their groups, which takes the longer the more there are. They have
    as long as who imports, unless it is known to be in vain.
    """
    evidence = case.evidence
    if wait.kind != OTHER or wait.op.call.op != DRAINING or not evidence.live:
        return False
    if evidence.age_ns(wait.op) >= importing.limit_ns(evidence) or _held_by_graphs(case, wait):
        return False
    inside = {w.process for w in case.open() if w.op.call.op == DRAINING}
    ranks = (p for p in evidence.trace.processes if p.is_rank)
    return all(p.index in inside for p in ranks if not evidence.ends[p.index].over)


def _ended(case: Case, wait: Wait) -> bool:
    """Whether something else than a lack of progress is at hand: a closed connection is the end of
    a process, and why a group could not be made is in the text of a failure. Nor was anybody held
    who ended well: that nobody saw its device come through says nothing then.
    """
    if wait.op.on_device and case.evidence.ends[wait.process].how == CLEAN:
        return True
    if wait.kind != RENDEZVOUS:
        return is_closed(wait.op.error)
    ends = case.evidence.ends
    return wait.op.error is not None or any(ends[p].how in (OWN, CASCADE) for p in wait.arrived)


def _just_complete(case: Case, wait: Wait) -> bool:
    """Whether the last one came so late that nobody knows whether it would have moved since."""
    evidence, op = case.evidence, wait.op
    if wait.kind == COLLECTIVE and wait.stream is not None and op.seq is not None:
        inside = list(evidence.sample.members(wait.stream, op.seq).values())
    elif wait.kind == RENDEZVOUS:
        found = case.rendezvous.of(op)
        inside = [] if found is None else list(found.ops)
    elif wait.kind == MESSAGE:
        partner = evidence.sample.other_end(op)
        inside = [] if partner is None else [partner]
    else:  # agents may wait in a rendezvous of nodes, with others who came there
        inside = [a.op for a in case.agents.waiting if a.process in wait.arrived]
    last = max((one.begin_ns for one in inside), default=0)
    until = op.end_ns or evidence.until_ns(op.process)
    allowed_ns = evidence.stalled_after_ns
    if op.call.op == "TCPStore" and evidence.live:
        # Who dials a server that is not there yet waits for longer before each try.
        dialled_ns = last - min((one.begin_ns for one in inside), default=last)
        allowed_ns = max(allowed_ns, min(dialled_ns, _MOST_BETWEEN_TRIES_NS))
    return op.error is None and until - last < allowed_ns


def _host_is_ahead(case: Case, wait: Wait) -> bool:
    """Whether the device of a member came through something else of late: what was issued long ago
    is behind that. Where it is not, it is told once the device stands still.
    """
    evidence = case.evidence
    if not wait.op.on_device or wait.op.error is not None:
        return False
    return any(
        op.on_device
        and op.error is None
        and op.end_ns is not None
        and evidence.until_ns(process) - op.end_ns < evidence.stalled_after_ns
        for process in {wait.process, *wait.arrived}
        for op in evidence.sample.of_process.get(process, ())
    )


def _is_only_asked(wait: Wait) -> bool:
    """Whether nobody has begun to wait for a message of which the backend hears only then."""
    call = wait.op.call
    unwaited = call.asynchronous is True and wait.op.wait_begin_ns is None
    return wait.kind == MESSAGE and call.backend == "gloo" and unwaited


def _finding(case: Case, wait: Wait) -> Finding:
    evidence, trace = case.evidence, case.evidence.trace
    inside = [w for w in case.open() if w.exchange == wait.exchange or _alike(w, wait)]
    # Members that have begun, and then stopped running while other members went on waiting.
    members = () if wait.kind == OTHER else wait.arrived
    still = evidence.still(members, members)
    who = [w.process for w in inside]
    waited_ns = max(evidence.age_ns(w.op) for w in inside)
    open_ = _open(case, wait)
    told = troubles.around(case, wait, {*who, *wait.arrived})
    return Finding(
        kind="no_progress",
        summary=words.summary(trace, wait, who, waited_ns, outside.doing(case, still), open_)
        + trouble_words.said(trace, told),
        certainty=LIKELY,
        culprits=still,
        hint=lacking
        if (lacking := words.OPEN.get(open_ or ""))
        else outside.stopped_hint(case, still) or words.FROZEN
        if still
        else trouble_words.HINTS[told[0][1].where]
        if told
        else words.INTERFACE
        if wait.kind == RENDEZVOUS
        else words.ASKED
        if all(_is_only_asked(w) for w in inside)
        else words.GRAPHS
        if _held_by_graphs(case, wait)
        else words.NETWORK,
        waiting=tuple(who),
        op=wait.op.call.op,
        group=trace.group_id(wait.op.call),
        seq=wait.op.seq,
        locations=evidence.locations(w.op for w in inside),
        at_ns=wait.op.begin_ns,
        scope=Scope(exchanges=frozenset(w.exchange for w in inside), roots=frozenset(who)),
    )


def _held_by_graphs(case: Case, wait: Wait) -> bool:
    """Whether groups are destroyed by one who has replayed a CUDA graph with operations in it."""
    if wait.op.call.op != DRAINING:
        return False
    return any(
        op.call.backend == REPLAYED for op in case.evidence.sample.of_process.get(wait.process, ())
    )


def _apart(case: Case, waits: Sequence[Wait]) -> Finding:
    """Waits at different places, of which nobody knows whether they are for one another."""
    who = [w.process for w in waits]
    return Finding(
        kind="no_progress",
        summary=words.apart(case.evidence.trace, waits),
        certainty=LIKELY,
        hint=words.UNCOUNTED,
        waiting=tuple(who),
        locations=case.evidence.locations(w.op for w in waits),
        at_ns=waits[0].op.begin_ns,
        scope=Scope(exchanges=frozenset(w.exchange for w in waits), roots=frozenset(who)),
    )


def _open(case: Case, wait: Wait) -> str | None:
    """What the evidence lacks without which nobody knows that all is as it should be: ``members``
    or ``root``; ``began`` where it holds more, that all devices have begun it.
    """
    evidence, op = case.evidence, wait.op
    if wait.kind != COLLECTIVE or wait.stream is None or op.seq is None or op.call.group is None:
        return None
    if evidence.trace.groups[op.call.group].partial:
        return "members"
    if op.call.op in LED and not case.knows("root", wait.arrived):
        return "root"
    inside = evidence.sample.members(wait.stream, op.seq).values()
    return "began" if all(one.call.args.get("started") for one in inside) else None


def _unanswered(case: Case, wait: Wait) -> Finding:
    """A store's server does not answer, since its process does not run."""
    evidence = case.evidence
    inside = case.inside(wait.exchange)
    who = list(dict.fromkeys(w.process for w in inside))
    ((server, doing),) = outside.doing(case, wait.targets).items()
    waited_ns = max(evidence.age_ns(w.op) for w in inside)
    return Finding(
        kind="no_progress",
        summary=words.unanswered(evidence.trace, wait.op, who, waited_ns, server, doing),
        certainty=LIKELY,
        culprits=(server,),
        hint=outside.stopped_hint(case, [server]) or words.FROZEN,
        waiting=tuple(who),
        op=wait.op.call.op,
        locations=evidence.locations(w.op for w in inside) + outside.locations(case, [server]),
        at_ns=wait.op.begin_ns,
        scope=Scope(exchanges=frozenset({wait.exchange}), roots=frozenset({server})),
    )


def _alike(one: Wait, two: Wait) -> bool:
    return one.kind == two.kind == OTHER and one.op.call.op == two.op.call.op
