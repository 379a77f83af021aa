"""Waits in a store: for a key, for a server that does not answer, or by asking again and again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from dataclasses import replace

from disttrace_viewer.analysis.error_texts import is_closed
from disttrace_viewer.analysis.process_ends import SILENT
from disttrace_viewer.evidence.evidence import Evidence
from disttrace_viewer.evidence.store_keys import AWAITING, Key, Setters, keys_of
from disttrace_viewer.evidence.waits.asking import asking, tries_again
from disttrace_viewer.evidence.waits.wait import KEY, SERVER, Wait, late_by_ns
from disttrace_viewer.trace.operation import Op


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
        # A connection that was closed says nothing of the key.
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
    first = [one for key in keys if (one := setters.set_by(key)) is not None]
    late = {one.process: late_by_ns(setters.evidence, op, one) for one in first}
    return tuple((process, ns) for process, ns in sorted(late.items()) if ns)


def _server(evidence: Evidence, op: Op) -> int | None:
    """The process that serves the store of an operation, if that is known."""
    place = evidence.trace.place_by_id.get(evidence.trace.place_of(op.call) or "")
    return None if place is None else place.server


def _cut_off(evidence: Evidence, op: Op) -> bool:
    """Whether a wait had been in vain for long when its store was ended from outside: a job that
    hangs is killed, and one whose server goes first closes the connections of the others.
    """
    server, waited_ns = _server(evidence, op), (op.end_ns or 0) - op.begin_ns
    silent = server is not None and evidence.ends[server].how == SILENT
    return silent and waited_ns >= evidence.stall_ns


def _still_server(evidence: Evidence, op: Op) -> int | None:
    """The other process that serves the store of an operation, if it does not run: a server answers
    in a thread of its own, whatever else its process waits for.
    """
    server = _server(evidence, op)
    if server is None or server == op.process or not evidence.still([server], [op.process]):
        return None
    return server


def asked(setters: Setters, waiting: Set[int]) -> Iterator[Wait]:
    """Waits by polling. Where nobody is known to be the one to act, they hold up nobody: others
    that wait for who asks are told where it is.
    """
    evidence = setters.evidence
    asked = list(asking(evidence))
    everybody = waiting | {op.process for op, _, _ in asked}
    for op, since, turn in asked:
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
