"""Processes failed because communication broke, and nothing that was recorded says why it did.

The last rule about errors: over a failed process nobody may say that nothing is wrong.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from disttrace.journal.format import EXEC
from disttrace_viewer.analysis.error_texts import is_time_out
from disttrace_viewer.analysis.process_ends import CASCADE, CLEAN, OWN
from disttrace_viewer.evidence.peer_addresses import end_of
from disttrace_viewer.findings.case import Case
from disttrace_viewer.findings.finding import ERROR, LIKELY, Finding, Scope
from disttrace_viewer.findings.rules import process_failed
from disttrace_viewer.trace.operation import Op
from disttrace_viewer.wording.findings import unexplained as words


def find(case: Case) -> Iterator[Finding]:
    """One finding per attempt in which something failed and nothing else was found."""
    trace = case.evidence.trace
    told = {
        trace.processes[p].attempt
        for f in case.findings
        if f.severity == ERROR
        for p in (*f.culprits, *f.waiting, *f.scope.roots, *f.scope.members)
    }
    if any(f.severity == ERROR for f in case.findings) and not told:
        return  # about ranks of which there is no process
    left: dict[int | None, list[int]] = {}
    for process, end in enumerate(case.evidence.ends):
        attempt = trace.processes[process].attempt
        if end.how not in (OWN, CASCADE) or process in case.ends or attempt in told:
            continue
        if process_failed.counts(case, process):  # and does not only report its children's end
            left.setdefault(attempt, []).append(process)
    for failed in left.values():
        yield _finding(case, sorted(failed, key=lambda p: case.evidence.ends[p].t_ns))


def _finding(case: Case, failed: list[int]) -> Finding:
    evidence = case.evidence
    place = {process: number for number, process in enumerate(failed)}
    broken = [op for op in evidence.given_up if op.process in place]
    broken.sort(key=lambda op: place[op.process])
    left = _left(case, broken)
    server = None if left else _ended_server(case, failed)
    gave_up = server is None and not left and all(is_time_out(op.error) for op in broken)
    gave_up = gave_up and bool(broken)
    summary = words.summary(
        evidence.trace,
        {process: end_of(evidence, process) for process in failed},
        broken,
        None if server is None else (server, end_of(evidence, server)),
        left,
        gave_up=gave_up,
    )
    return Finding(
        kind="process_failed",
        summary=summary,
        certainty=LIKELY,
        hint=words.hint(server, left, gave_up=gave_up),
        culprits=_turned(case, server) or tuple(case.by_rank(op.process for op in left)),
        waiting=tuple(failed),
        op=broken[0].call.op if broken else None,
        locations=evidence.locations([*broken, *left]),
        at_ns=evidence.ends[failed[0]].t_ns,
        scope=Scope(members=frozenset(failed)),
    )


def _turned(case: Case, server: int | None) -> tuple[int, ...]:
    """The server of the store, if it became another program: that never comes to an end of what it
    was, as one does that has ended well, perhaps after all that it was to do.
    """
    if server is None or case.evidence.ends[server].exit_word != EXEC:
        return ()
    return (server,)


def _left(case: Case, broken: Sequence[Op]) -> list[Op]:
    """What those did not wait for who ended well before others lost contact in that very exchange:
    with the process went its part in it, of which nothing may have been sent yet.
    """
    ends = case.evidence.ends
    found: dict[int, Op] = {}
    for op in broken:
        for other in case.evidence.sample.partners(op):
            end, seen = ends[other.process], other.call.origin != "c++" and not other.on_device
            if other.underway and seen and end.how == CLEAN and end.t_ns <= (op.end_ns or 0):
                found.setdefault(other.process, other)
    return [*found.values()]


def _ended_server(case: Case, failed: list[int]) -> int | None:
    """The process that served the failed ones' store and ended well before they failed."""
    evidence, trace = case.evidence, case.evidence.trace
    first = min(evidence.ends[p].t_ns for p in failed)
    for place in trace.places:
        server = place.server
        if server is None or server in failed or not set(place.processes) & set(failed):
            continue
        if evidence.ends[server].how == CLEAN and evidence.ends[server].t_ns <= first:
            return server
    return None
