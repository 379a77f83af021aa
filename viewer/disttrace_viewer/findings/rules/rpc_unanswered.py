"""A remote call (``torch.distributed.rpc``) is not answered: who waits for whom, what runs there.

A worker runs what others ask of it in threads of their own, so its main thread, which mostly waits
in ``rpc.shutdown`` for everybody, says nothing about it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from disttrace.journal.format import RPC_RUN
from disttrace_viewer.analysis.operation import Op, innermost
from disttrace_viewer.evidence.rpc_rounds import TOGETHER, missing, round_of, workers
from disttrace_viewer.evidence.wait_graph import RPC, Wait
from disttrace_viewer.findings.case import Case
from disttrace_viewer.findings.finding import LIKELY, Finding, Scope
from disttrace_viewer.trace.model import Frame, Location
from disttrace_viewer.wording.findings import rpc_unanswered as words


def find(case: Case) -> Iterator[Finding]:
    """One finding per worker that owes an answer, or for all who are missing at an end: what waits
    for that in turn follows from it.
    """
    owed: dict[object, list[Wait]] = {}
    for wait in case.open():
        if wait.kind == RPC and case.old(wait) and not _within_another(case, wait):
            owed.setdefault(_owes(case, wait), []).append(wait)
    because = {key: _because_of(case, waits[0], owed) for key, waits in owed.items()}
    roots = [key for key, causes in because.items() if not causes] or list(owed)[:1]
    for key in sorted(roots, key=lambda key: owed[key][0].op.begin_ns):
        if _all_wait(case, owed[key][0]):
            continue
        follow = _following(key, because)
        yield _finding(case, owed[key], [w for other in follow for w in owed[other]])


def _all_wait(case: Case, wait: Wait) -> bool:
    """Whether those that have not come to a round wait for others: that explains them."""
    return bool(wait.targets) and not any(case.outside(p) for p in wait.targets)


def _because_of(case: Case, wait: Wait, owed: Mapping[object, Sequence[Wait]]) -> frozenset[object]:
    """The other answers that somebody waits for who owes this one."""
    if wait.op.call.op == TOGETHER:
        late = missing(case.evidence, wait.op)
        return frozenset(
            key
            for key, waits in owed.items()
            if any(w.process in late and w.op.thread == 0 for w in waits)
        )
    callee = _callee(case, wait)
    running = None if callee is None else _running(case, callee, wait)
    blocked = None if running is None else _blocked(case, running)
    return frozenset(
        key for key, waits in owed.items() if blocked and any(w.op.id == blocked.id for w in waits)
    )


def _following(key: object, because: Mapping[object, frozenset[object]]) -> list[object]:
    """All that waits for an answer, directly or not."""
    found = [key]
    for one in found:
        found += [k for k, causes in because.items() if one in causes and k not in found]
    return found[1:]


def _within_another(case: Case, wait: Wait) -> bool:
    """Whether it is a call of the library's own around which all come together."""
    around = case.evidence.sample.get(wait.process, wait.op.parent)
    return around is not None and around.call.op == TOGETHER and wait.op.call.op != TOGETHER


def _owes(case: Case, wait: Wait) -> object:
    if wait.op.call.op == TOGETHER:
        around = round_of(case.evidence, wait.op)
        return None if around is None else around.call.op
    return (_callee(case, wait), wait.op.call.args.get("to"))


def _callee(case: Case, wait: Wait) -> int | None:
    return workers(case.evidence, wait.process).get(wait.op.call.args.get("to"))


def _finding(case: Case, waits: Sequence[Wait], follow: Sequence[Wait]) -> Finding:
    evidence, trace = case.evidence, case.evidence.trace
    wait = waits[0]
    together = wait.op.call.op == TOGETHER
    who = list(dict.fromkeys(w.process for w in waits))
    callee = None if together else _callee(case, wait)
    running = None if callee is None else _running(case, callee, wait)
    owing = [] if callee is None else [callee]
    if together:
        owing = case.by_rank(missing(evidence, wait.op))
    blocked = None if running is None else _blocked(case, running)
    where = None if running is None else _stands(case, running)
    found = words.Unanswered(
        wait=wait,
        who=who,
        waited_ns=max(evidence.age_ns(w.op) for w in waits),
        to=wait.op.call.args.get("to"),
        callee=callee,
        end=None if callee is None else evidence.ends[callee],
        running=running,
        at=where,
        blocked=blocked,
        around=round_of(evidence, wait.op) if together else None,
        missing=owing,
        stands={p: at for p in owing if (at := evidence.whereabouts(p)) is not None},
    )
    places = list(evidence.locations(w.op for w in waits))
    if running is not None and where is not None:
        at = Location(running.process, where.file, where.line, where.function, RPC_RUN)
        places.insert(0, at)
    elif owing:
        places[:0] = [at for p in owing if (at := evidence.whereabouts(p)) is not None]
    # Who waits for others itself has not come since they have not.
    away = tuple(p for p in owing if not together or case.outside(p))
    waits_itself = blocked is not None or (callee is not None and callee in who)
    return Finding(
        kind="rpc_unanswered",
        certainty=LIKELY,
        summary=words.summary(trace, found),
        hint=words.hint(found),
        culprits=() if waits_itself else away,
        waiting=tuple(who),
        op=wait.op.call.op,
        locations=tuple(dict.fromkeys(places)),
        at_ns=wait.op.begin_ns,
        consequences=tuple(
            words.follows(trace, round_of(evidence, w.op) or w.op, w) for w in follow
        ),
        scope=Scope(
            exchanges=frozenset(w.exchange for w in (*waits, *follow)),
            roots=frozenset() if waits_itself else frozenset(away),
        ),
    )


def _running(case: Case, callee: int, wait: Wait) -> Op | None:
    """What the worker runs for the call: the oldest of that function that is not over."""
    wanted = wait.op.call.args.get("func")
    running = [
        op
        for op in case.evidence.pending
        if op.process == callee and op.call.op == RPC_RUN and op.begin_ns >= 0
    ]
    same = [op for op in running if wanted is None or op.call.args.get("func") == wanted]
    return next(iter(same or running), None)


def _stands(case: Case, running: Op) -> Frame | None:
    """Where the thread stands that runs it."""
    sample = case.evidence.trace.processes[running.process].latest_samples.get(running.thread)
    if sample is None or sample.t_ns < running.begin_ns:
        return None
    return innermost(sample.stack)


def _blocked(case: Case, running: Op) -> Op | None:
    """What that thread waits in itself."""
    return next(
        (
            op
            for op in case.evidence.blocking
            if (op.process, op.thread) == (running.process, running.thread) and op != running
        ),
        None,
    )
