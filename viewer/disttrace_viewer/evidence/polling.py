"""Waits in a store: for a key, for its server, or by asking again and again.

``store.add(key, 0)`` or ``check`` in a loop, or ``get`` with a short time-out that is caught, is a
wait for a rank that no open operation shows. A controller may ask like that all day while the
others train, so it counts only where no rank of the job gets on, and where something shows that the
answer was meant to come: several ask for it, or who asks has had a part in it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence, Set

from disttrace_viewer.analysis.process_ends import SILENT
from disttrace_viewer.analysis.sample import frame
from disttrace_viewer.evidence.evidence import Evidence
from disttrace_viewer.evidence.store_keys import AWAITING, Key, Setters, keys_of
from disttrace_viewer.evidence.wait import KEY, SERVER, Wait, late_by_ns
from disttrace_viewer.trace.operation import CREATING, Op, is_closed
from disttrace_viewer.trace.values import replace, together

_READING = ("store.get", "store.wait", "store.multi_get", "store.check")
"""What changes nothing in a store: of several keys that are requested in turn each is one."""
ASKED_NS = 3_000_000_000
"""Who polls asks at least so often."""
STARVED_NS = 4 * ASKED_NS
"""So often on a machine with much else to do."""


def asking(evidence: Evidence) -> Iterator[tuple[Op, int, tuple[Op, ...]]]:
    """The newest poll of each process that waits so, since when, and all that it polls in turn."""
    found = {}
    for process, op in evidence.last.items():
        if evidence.trace.processes[process].is_agent:
            continue
        for newest in dict.fromkeys((evidence.last_of_thread.get((process, 0), op), op)):
            polls = _polls_in_turn(evidence, newest)
            if polls is not None and evidence.until_ns(process) - polls[0] >= evidence.stall_ns:
                found[process] = (newest, *polls)
                break
    waiting = {op.process for op in evidence.blocking}
    if not found or _gets_on(evidence, found.keys() | waiting):
        return
    trace = evidence.trace
    several = Counter(
        keys for *_, turn in found.values() for keys in {keys_of(trace, polls) for polls in turn}
    )
    for op, since, turn in found.values():
        if (
            tries_again(evidence, op)
            or any(several[keys_of(trace, polls)] > 1 for polls in turn)
            or any(_took_part(evidence, polls) for polls in turn)
        ):
            yield op, since, turn


def tries_again(evidence: Evidence, op: Op) -> bool:
    """Whether it is one more try of a wait that timed out: then it is as old as the first."""
    of_process = evidence.sample.of_process[op.process]
    return (
        op.call.op in AWAITING
        and (op.thread in evidence.at_work.get(op.process, {0}) or _between(of_process, op))
        and any(
            (one.call.index, one.key, one.thread) == (op.call.index, op.key, op.thread)
            and one.error is not None
            and not is_closed(one.error)
            for one in of_process
        )
    )


def _between(of_process: Iterable[Op], op: Op) -> bool:
    """Whether its thread was given such a key and made a group since: it does both in turn."""
    mine = [one for one in of_process if one.thread == op.thread]
    given = [o.begin_ns for o in mine if o.call.index == op.call.index and o.error is None]
    made = max((one.begin_ns for one in mine if one.call.op in CREATING), default=0)
    return bool(given) and min(given) < made


def _polls_in_turn(evidence: Evidence, last: Op) -> tuple[int, tuple[Op, ...]] | None:
    """Since when the thread of a process's newest operation does nothing but ask, and what for,
    each once; None if it does anything else.

    Of each key that a call uses its first and its last use are known; so is the newest operation of
    each other kind, stream and key of the thread.
    """
    call = last.call
    if call.kind != "store" or call.origin == "c++" or last.key is None or last.parent is not None:
        return None
    until, awaits = evidence.until_ns(last.process), call.op in AWAITING
    seen_ns = (until if last.pending else last.end_ns) if awaits else last.begin_ns
    if until - (seen_ns or last.begin_ns) > poll_within_ns(evidence, last):
        return None
    kept = evidence.sample.of_process[last.process]
    uses = together(((op.call.index, op.key), op) for op in kept if op.thread == last.thread)
    newest = uses[last.call.index, last.key]
    place_of = evidence.trace.place_of
    turn = [newest] + [
        used
        for used in uses.values()
        if used is not newest
        and used[0].call.op in _READING
        and place_of(used[0].call) == place_of(last.call)
        and len(used) > 1
        and until - used[-1].begin_ns <= ASKED_NS
    ]
    since = max(min(op.begin_ns for op in used) for used in turn)
    if awaits:  # what came of an earlier one was not in vain
        since = max([since, *(op.end_ns or 0 for op in newest if op.status == "ok")])
    if len(newest) < 2:
        return None
    others = (op for used in uses.values() if used not in turn for op in used)
    before = max(others, key=lambda op: op.begin_ns, default=None)
    if before is not None and since <= before.begin_ns:  # it has requested the same before as well
        if not _again(evidence, before, last):
            return None
        since = before.end_ns or before.begin_ns
    return since, tuple(used[-1] for used in turn if used[-1].begin_ns >= since)


def _again(evidence: Evidence, before: Op, last: Op) -> bool:
    """Whether a thread has queried more than once since it did anything else: whatever else it did
    is known, so that all numbers since are of questions, unless another thread took some of them.
    """
    if last.call.op in AWAITING or last.number < before.number + 2:
        return False
    active = evidence.sample.active.items()
    return not any(
        process == last.process and thread != last.thread and ns >= before.begin_ns
        for (process, thread), ns in active
    )


def poll_within_ns(evidence: Evidence, last: Op) -> int:
    """How old the newest question of a thread may be that still asks: older if it stands there."""
    sample, asks = evidence.stands(last.process), frame(last)
    if last.thread != 0 or sample is None or asks is None:
        return ASKED_NS
    return STARVED_NS if (sample.file, sample.line) == (asks.file, asks.line) else ASKED_NS


def _gets_on(evidence: Evidence, waiting: set[int]) -> bool:
    """Whether any process that does not wait did something of late, or ended; but for agents."""
    from_ns, processes = evidence.cut_ns - evidence.stall_ns, evidence.trace.processes
    others = {p.index for p in processes if p.index not in waiting and not p.is_agent}
    active = evidence.sample.active.items()
    return any(
        ns > from_ns and process in others and not evidence.beside(process, thread)
        for (process, thread), ns in active
    ) or any(
        end.over and end.how != SILENT and end.t_ns > from_ns and process in others
        for process, end in enumerate(evidence.ends)
    )


def _took_part(evidence: Evidence, polls: Op) -> bool:
    """Whether it has used the key by another call too (a counter), or wants it itself: a lock."""
    if polls.call.op == "store.compare_set":
        return True
    keys = keys_of(evidence.trace, polls)
    return any(
        op.call.index != polls.call.index and keys_of(evidence.trace, op) == keys
        for op in evidence.sample.of_process[polls.process]
        if op.call.kind == "store" and op.key is not None
    )


def keys(setters: Setters, chosen: Sequence[Op], waiting: Set[int]) -> Iterator[Wait]:
    """Operations in flight that wait for keys, or for the server; ``waiting``: who waits at all."""
    evidence = setters.evidence
    for op in chosen:
        place, keys = evidence.trace.place_of(op.call), keys_of(evidence.trace, op)
        queue = op.call.op == "store.queue_pop"
        nothing = setters.drained if queue else setters.absent
        unset = [key for key in keys if nothing(key)]
        blocks = op.call.op in AWAITING
        exchange = (KEY, place, *sorted(name for _, name in unset or keys))
        # A connection that was closed proves nothing of the key.
        missing = bool(unset) and blocks and (not is_closed(op.error) or _cut_off(evidence, op))
        # Who has filled a queue so far need not be the one to fill it once more.
        wanted = unset if missing and not queue else []
        known = {p for key in wanted for p in setters.expected(key, op.process, waiting)}
        if not missing:
            known = {setters.begun[key] for key in keys if key in setters.begun} - {op.process}
        late = _set_late(setters, op, keys) if blocks and not queue else ()
        if late:
            processes = tuple(process for process, _ in late)
            yield Wait(op, KEY, exchange, processes, unknown=True, lateness=late)
            continue
        server = _still_server(evidence, op) if not (missing or known or op.error) else None
        if server is not None:
            yield Wait(op, SERVER, (SERVER, place), (server,))
            continue
        yield Wait(op, KEY, exchange, tuple(sorted(known)), unknown=missing)


def _set_late(setters: Setters, op: Op, keys: Sequence[Key]) -> tuple[tuple[int, int], ...]:
    """Who set a key when this operation had given it up, and how long after."""
    if op.error is None or op.end_ns is None or is_closed(op.error):
        return ()
    first = [one for key in keys if (one := setters.set_by.get(key)) is not None]
    late = {one.process: late_by_ns(setters.evidence, op, one) for one in first}
    return tuple((process, ns) for process, ns in sorted(late.items()) if ns)


def _server(evidence: Evidence, op: Op) -> int | None:
    """The process that serves the store of an operation, if that is known."""
    place = evidence.trace.place_by_id.get(evidence.trace.place_of(op.call) or "")
    return None if place is None else place.server


def _cut_off(evidence: Evidence, op: Op) -> bool:
    """Whether a long wait ended by its store's silent end: a job that hangs was killed."""
    server, waited_ns = _server(evidence, op), (op.end_ns or 0) - op.begin_ns
    silent = server is not None and evidence.ends[server].how == SILENT
    return silent and waited_ns >= evidence.stall_ns


def _still_server(evidence: Evidence, op: Op) -> int | None:
    """The other process that serves the store of an operation, if it does not run."""
    server = _server(evidence, op)
    if server is None or server == op.process or not evidence.still([server], [op.process]):
        return None
    return server


def polls(setters: Setters, waiting: Set[int]) -> Iterator[Wait]:
    """Waits by polling. Where none is known to be the one to act, they hold up none: others
    that wait for the one that asks get its position.
    """
    evidence = setters.evidence
    polls = list(asking(evidence))
    everybody = waiting | {op.process for op, _, _ in polls}
    for op, since, turn in polls:
        keys = [key for one in turn for key in keys_of(evidence.trace, one)]
        keys = [key for key in keys if setters.absent(key)] or keys
        expected = {
            process
            for key in (keys if len(turn) == 1 else ())  # of several any may be the awaited one
            for process in setters.expected(key, op.process, everybody, counted=True)
        }
        times = dict.fromkeys(("issued_ns", "wait_begin_ns", "complete_ns", "end_ns", "error"))
        yield Wait(
            replace(op, begin_ns=since, **times),  # type: ignore[arg-type]
            KEY,
            (KEY, evidence.trace.place_of(op.call), *sorted({name for _, name in keys})),
            tuple(sorted(expected)),
            unknown=True,
            side=not (expected or tries_again(evidence, op)),
            polled=True,
        )


def at_still_server(evidence: Evidence, wait: Wait, leaf: Op) -> Wait:
    """Where all have come to a rendezvous, but the store through which they exchange addresses is
    served by a process that does not run, that is what is waited for.
    """
    server = None
    if wait.complete and wait.op.error is None and leaf.call.kind == "store":
        server = _still_server(evidence, leaf)
    if server is None:
        return wait
    return Wait(leaf, SERVER, (SERVER, evidence.trace.place_of(leaf.call)), (server,))
