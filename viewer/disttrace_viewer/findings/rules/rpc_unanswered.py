"""A remote call (``torch.distributed.rpc``) is not answered: who waits for whom, what runs there.

A worker runs what others ask of it in threads of their own, so its main thread, which mostly waits
in ``rpc.shutdown`` for everybody, says nothing about it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from disttrace.journal.format import RPC_RUN, RPC_WAITS
from disttrace_viewer.analysis.operation import innermost
from disttrace_viewer.evidence import rpc_rounds
from disttrace_viewer.evidence.rpc_rounds import callee, is_of, round_of, threads
from disttrace_viewer.evidence.waits.wait import RPC, Wait
from disttrace_viewer.findings.case import Case
from disttrace_viewer.findings.finding import LIKELY, Finding, Scope
from disttrace_viewer.trace.model import Location
from disttrace_viewer.trace.operation import Op
from disttrace_viewer.trace.process import Frame
from disttrace_viewer.wording.findings import rpc_unanswered as words


def find(case: Case) -> Iterator[Finding]:
    """One finding per worker that owes an answer, or for all who are missing at an end: what waits
    for that in turn follows from it.
    """
    owed: dict[object, list[Wait]] = {}
    for wait in case.open():
        if wait.kind == RPC and case.old(wait):
            owed.setdefault(_owes(case, wait), []).append(wait)
    for waits in owed.values():
        waits.sort(key=lambda wait: not wait.runs)
    because = {key: _because_of(case, waits[0], owed) for key, waits in owed.items()}
    told = set[object]()
    # First what follows from nothing else; where each follows from another one, the oldest.
    for key in sorted(owed, key=lambda key: (bool(because[key]), owed[key][0].op.begin_ns)):
        if key in told or _all_wait(case, owed[key][0]) or _explained(case, owed[key][0]):
            continue
        follow = _following(key, because)
        told |= {key, *follow}
        yield _finding(case, owed[key], [w for other in follow for w in owed[other]])


def _explained(case: Case, wait: Wait) -> bool:
    """Whether the worker has ended, and of its end a finding tells."""
    worker = callee(case.evidence, wait.op)
    return worker is not None and worker in case.ends


def _all_wait(case: Case, wait: Wait) -> bool:
    """Whether those that have not come to a round wait for others, or others wait for them in
    what comes before it, of which a later rule tells: that explains them.
    """
    return bool(wait.targets) and not any(
        _outside(case, p) and not _awaited_before(case, p) for p in wait.targets
    )


def _awaited_before(case: Case, process: int) -> bool:
    return any(one.kind != RPC and case.old(one) for one in case.awaiting(process))


def _outside(case: Case, process: int) -> bool:
    """Whether its program waits for nobody: a call that it made just now may be answered."""
    return case.outside(process) and not any(
        op.process == process and op.thread == 0 and op.call.op in RPC_WAITS
        for op in case.evidence.blocking
    )


def _because_of(case: Case, wait: Wait, owed: Mapping[object, Sequence[Wait]]) -> frozenset[object]:
    """The other answers that somebody waits for who owes this one."""
    running = _running(case, wait)
    blocked = None if running is None else _blocked(case, running)
    return frozenset(
        key
        for key, waits in owed.items()
        if any(w.process in wait.targets and w.op.thread == 0 for w in waits)
        or (blocked and any(w.op.id == blocked.id for w in waits))
    )


def _following(key: object, because: Mapping[object, frozenset[object]]) -> list[object]:
    """All that waits for an answer, directly or not."""
    found = [key]
    for one in found:
        found += [k for k, causes in because.items() if one in causes and k not in found]
    return found[1:]


def _owes(case: Case, wait: Wait) -> object:
    around = round_of(case.evidence, wait.op)
    if around is not None:
        return around.call.op
    return (callee(case.evidence, wait.op), wait.op.call.args.get("to"), _running(case, wait))


def _finding(case: Case, waits: Sequence[Wait], follow: Sequence[Wait]) -> Finding:
    evidence, trace = case.evidence, case.evidence.trace
    wait = waits[0]
    around = round_of(evidence, wait.op)
    who = list(dict.fromkeys(w.process for w in waits))
    worker = callee(evidence, wait.op)
    running = _running(case, wait)
    owing = [p for p in [worker if running is None else running.process] if p is not None]
    if wait.targets:
        owing = case.by_rank(wait.targets)
    blocked = None if running is None else _blocked(case, running)
    where = None if running is None else _stands(case, running)
    meanwhile = _meanwhile(case, wait)
    found = words.Unanswered(
        wait=wait,
        who=who,
        waited_ns=max(evidence.age_ns(w.op) for w in waits),
        to=wait.op.call.args.get("to"),
        callee=worker,
        end=None if worker is None or worker in case.cut_off else evidence.ends[worker],
        running=running,
        begun=running is None or is_of(evidence, running, wait.op),
        at=where,
        blocked=blocked,
        around=around,
        missing=case.by_rank(wait.targets),
        stands={p: at for p in owing if (at := evidence.whereabouts(p)) is not None},
        meanwhile=[(run, _stands(case, run)) for run in meanwhile],
    )
    places = list(evidence.locations(w.op for w in waits))
    if running is not None and where is not None:
        at = Location.at(running.process, where, RPC_RUN)
        places.insert(0, at)
    elif owing:
        places[:0] = [at for p in owing if (at := evidence.whereabouts(p)) is not None]
    # Who waits for others itself has not come since they have not.
    away = tuple(
        p
        for p in owing
        if not wait.targets or (_outside(case, p) and case.at_work(p, wait.op.begin_ns) is None)
    )
    if meanwhile:
        in_futures = all(_stands_in_futures(case, p) for p in wait.targets)
        away = tuple(dict.fromkeys(run.process for run in meanwhile)) if in_futures else ()
    waits_itself = blocked is not None or (around is None and not set(who).isdisjoint(owing))
    if running is None and wait.serves is not None and threads(evidence, wait.process) is None:
        waits_itself = True  # its answer may be there, and find no thread
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


def _running(case: Case, wait: Wait) -> Op | None:
    """What is run that the call waits for: of several the oldest that does not wait itself."""
    free = [run for run in wait.runs if _blocked(case, run) is None]
    return next(iter(free or wait.runs), None)


def _meanwhile(case: Case, wait: Wait) -> list[Op]:
    """What others run, for as long as a stall, while somebody has not come to a round: who makes
    calls may wait for their answers in a way that no record tells (for several at once, by a
    callback).
    """
    evidence = case.evidence
    return [
        run
        for runs in (rpc_rounds.running(evidence).values() if wait.targets else ())
        for run in runs
        if run.process not in wait.targets
        and evidence.age_ns(run) >= evidence.stalled_after_ns
        and _blocked(case, run) is None
    ]


def _stands_in_futures(case: Case, process: int) -> bool:
    """Whether its main thread waits for answers in what torch has for that (``wait_all``)."""
    sample = case.evidence.trace.processes[process].latest_samples.get(0)
    return sample is not None and any(_FUTURES.search(one.file) for one in sample.stack)


_FUTURES = re.compile(r"[/\\]torch[/\\]futures[/\\]__init__\.py$")


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
