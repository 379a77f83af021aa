"""Processes failed because communication broke, and no record states why it did.

The last rule about errors: with a failed process the verdict may not be that nothing is wrong.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from disttrace.journal.format import EXEC
from disttrace_viewer.analysis.process_ends import CASCADE, CLEAN, OWN
from disttrace_viewer.analysis.sample import frame, together
from disttrace_viewer.evidence.endings import end_of
from disttrace_viewer.findings.case import Case
from disttrace_viewer.findings.finding import ERROR, RuleFinding, Scope
from disttrace_viewer.findings.rules import process_failed
from disttrace_viewer.trace.operation import Op, is_time_out
from disttrace_viewer.wording import sentences
from disttrace_viewer.wording.sentences import NOTHING_ELSE, ended


def find(case: Case) -> Iterator[RuleFinding]:
    """One finding per attempt in which something failed and nothing else was found."""
    reported = {
        case.trace.processes[p].attempt
        for f in case.findings
        if f.severity == ERROR
        for p in (*f.culprits, *f.waiting, *f.scope.roots, *f.scope.members)
    }
    if any(f.severity == ERROR for f in case.findings) and not reported:
        return  # about ranks of which there is no process
    left = together(
        (attempt, process)
        for process, end in enumerate(case.ends)
        if (attempt := case.trace.processes[process].attempt) not in reported
        and end.how in (OWN, CASCADE)
        and process not in case.end_owner
        and process_failed.counts(case, process)  # and does not only report its children's end
    )
    for failed in left.values():
        yield _finding(case, sorted(failed, key=lambda p: case.ends[p].t_ns))


def _finding(case: Case, failed: list[int]) -> RuleFinding:
    place = {process: number for number, process in enumerate(failed)}
    broken = [op for op in case.evidence.given_up if op.process in place]
    broken.sort(key=lambda op: place[op.process])
    left = _left(case, broken)
    server = None if left else _ended_server(case, failed)
    gave_up = server is None and not left and all(is_time_out(op.error) for op in broken)
    gave_up = gave_up and bool(broken)
    # One that became another program never comes to an end of what it was, as one does that has
    # ended well, perhaps after all that it was to do.
    turned = () if server is None or case.evidence.ends[server].exit_word != EXEC else (server,)
    return RuleFinding(
        kind="process_failed",
        summary=summary(case, failed, broken, server, left, gave_up),
        because=(NOTHING_ELSE,),
        hint=hint(server, left, gave_up=gave_up),
        culprits=turned or tuple(case.by_rank(op.process for op in left)),
        waiting=tuple(failed),
        op=broken[0].call.op if broken else None,
        locations=case.evidence.locations([*broken, *left]),
        at_ns=case.evidence.ends[failed[0]].t_ns,
        scope=Scope.of(members=failed),
    )


def _left(case: Case, broken: Sequence[Op]) -> list[Op]:
    """What those did not wait for who ended well before others lost contact in that very exchange:
    with the process went its part in it, of which nothing may have been sent yet.
    """
    found: dict[int, Op] = {}
    for op in broken:
        for other in case.sample.partners(op):
            end, seen = case.ends[other.process], other.call.origin != "c++" and not other.on_device
            if other.underway and seen and end.how == CLEAN and end.t_ns <= (op.end_ns or 0):
                found.setdefault(other.process, other)
    return [*found.values()]


def _ended_server(case: Case, failed: list[int]) -> int | None:
    """The process that served the failed ones' store and ended well before they failed."""
    first = min(case.evidence.ends[p].t_ns for p in failed)
    for place in case.trace.places:
        server = place.server
        if server is None or server in failed or not set(place.processes) & set(failed):
            continue
        if case.evidence.ends[server].how == CLEAN and case.evidence.ends[server].t_ns <= first:
            return server
    return None


Ops = Sequence[Op]


def summary(
    case: Case, failed: Sequence[int], broken: Ops, server: int | None, left: Ops, gave_up: bool
) -> str:
    """How they failed, in which operations; ``server``: who served their store, and ended;
    ``left``: what others did not wait for before they ended; ``gave_up``: no connection broke, but
    a time-out was over.
    """
    evidence, trace = case.evidence, case.trace
    alike = together((ended(end_of(evidence, process)), process) for process in failed)
    text = "; ".join(
        f"{sentences.processes(trace, who)} {ended(end_of(evidence, who[0]), many=len(who) > 1)}"
        for who in list(alike.values())[:3]
    )
    inside = dict.fromkeys(
        f"{sentences.operation(trace, op)}{sentences.aside(frame(op))}" for op in broken
    )
    where = f" in {sentences.listed(list(inside)[:3])}" if inside else ""
    what = "gave up" if gave_up else "lost contact"
    cause = f"no journal says who {'did not come' if gave_up else 'or what broke it'}"
    if server is not None:
        label, how = trace.processes[server].label, ended(end_of(evidence, server))
        cause = f"the store that they use was served by {label}, which {how} before"
    if left:
        cause = sentences.listed(
            [
                f"{trace.processes[op.process].label} had ended before without waiting for its"
                f" {sentences.call(trace, op)}"
                for op in left[: sentences.MANY]
            ]
        )
    return f"{sentences.subject(trace, failed)} {what}{where}, and {cause}: {text}."


def hint(server: int | None, left: Sequence[Op], *, gave_up: bool) -> str:
    """What to do about who ended too early, or what to look for."""
    if left:
        return (
            "Wait for asynchronous work before the process ends (`for work in works: work.wait()`):"
            " what is under way then is lost with it."
        )
    if gave_up:
        return (
            "See who comes there only after the time-out (`timeout=`, `rpc_timeout=`; 0 gives up at"
            " once), and what keeps it; else look at the network between the hosts."
        )
    if server is not None:
        return (
            "Keep the process that serves the store (rank 0) until all others are done: a barrier"
            " before it leaves."
        )
    return (
        "Look for a process that ended without a journal, for the network between the hosts, and at"
        " the first line of each rank's own output."
    )
