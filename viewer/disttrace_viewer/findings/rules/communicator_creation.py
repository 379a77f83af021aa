"""A communicator is being made, and all members are in it: a note, for a time of its own.

NCCL takes seconds for a few GPUs and minutes for thousands, inside the first call of a group. Who
is missing there is a matter of other rules; and after a part of the group's time-out so is this.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence

from disttrace_viewer.analysis.process_ends import ALIVE
from disttrace_viewer.evidence.waits.wait import Wait
from disttrace_viewer.findings import communicators
from disttrace_viewer.findings.case import Case
from disttrace_viewer.findings.finding import NOTE, Finding, Scope
from disttrace_viewer.trace.model import Trace
from disttrace_viewer.trace.operation import Op
from disttrace_viewer.wording import quantities, sentences
from disttrace_viewer.wording.reasons import MAY_END

OF_TIMEOUT = 4
"""After one part in so many of the group's time-out it is a stall."""


def find(case: Case) -> Iterator[Finding]:
    """One note per communicator that is made while all of its members are there."""
    seen: set[Hashable] = set()
    for wait in case.oldest() if case.evidence.live else ():
        if wait in case.owner or wait.exchange in seen or not wait.complete or wait.op.error:
            continue
        inside = communicators.members(case.evidence, wait)
        op = next((one for one in inside if communicators.making(case.evidence, one)), None)
        if op is None or not _all_run(case, inside):
            continue
        waits = [w for w in case.open() if w.exchange == wait.exchange or w.op in inside]
        seen.update(w.exchange for w in waits)
        since_ns = max(one.begin_ns for one in inside)
        lasts_ns = case.evidence.until_ns(op.process) - since_ns
        limit_ns = communicators.timeout_ns(case.evidence, op) // OF_TIMEOUT
        if case.evidence.stalled_after_ns <= lasts_ns < limit_ns:
            yield _finding(case, op, inside, waits, (lasts_ns, limit_ns))


def is_creation(finding: Finding) -> bool:
    """Whether a finding says no more than that a communicator is being made."""
    return finding.severity == NOTE and finding.kind == "no_progress"


def _all_run(case: Case, inside: Sequence[Op]) -> bool:
    """Whether nothing else explains why it takes long: one that has stopped, or has ended."""
    who = [one.process for one in inside]
    ends = case.evidence.ends
    run = all(ends[p].how == ALIVE and ends[p].held is None for p in who)
    return run and not case.evidence.still(who, who)


def _finding(
    case: Case, op: Op, inside: Sequence[Op], waits: Sequence[Wait], times: tuple[int, int]
) -> Finding:
    evidence, trace = case.evidence, case.evidence.trace
    who = tuple(case.by_rank(one.process for one in inside))
    lasts_ns, limit_ns = times
    backend = name(communicators.backend(evidence, op))
    first = communicators.is_first(evidence, op)
    return Finding(
        kind="no_progress",
        summary=summary(trace, op, who, lasts_ns, backend=backend, first=first),
        severity=NOTE,
        because=(MAY_END,),
        hint=hint(backend, limit_ns),
        waiting=who,
        op=op.call.op,
        group=trace.group_id(op.call),
        seq=op.seq,
        locations=evidence.locations(inside),
        at_ns=max(one.begin_ns for one in inside),
        scope=Scope(exchanges=frozenset(w.exchange for w in waits), roots=frozenset(who)),
    )


def name(backend: str | None) -> str:
    """``NCCL`` for every implementation of it."""
    text = (backend or "the backend").partition("-")[0]
    return "NCCL" if text in ("nccl", "nccl2", "ncclx") else text.upper() if backend else text


def summary(
    trace: Trace, op: Op, who: Sequence[int], lasts_ns: int, *, backend: str, first: bool
) -> str:
    """``first``: of its group, or of its pair; else the first of its sort there."""
    group = trace.group_of(op.call)
    at = f"{quantities.roughly(lasts_ns)} so far"
    call = f"{sentences.operation(trace, op)} at {sentences.line(op)}"
    if op.call.kind == "message":
        both, what = "both are in it", f"the pair of {sentences.processes(trace, who)}"
    else:
        both = "all members are in it"
        what = sentences.group(group) if group is not None else _made(trace, op, who)
    if not first:
        return f"{backend} prepares its first {call}: {at}, {both}."
    return f"{backend} makes the communicator of {what}: {at}, {both} ({call})."


def hint(backend: str, limit_ns: int) -> str:
    """When it will be taken for a stall."""
    more = " NCCL_DEBUG=INFO shows how far it is." if backend == "NCCL" else ""
    return (
        f"{backend} connects all members before the first of them is served; this is told as a"
        f" stall after {quantities.roughly(limit_ns)}, a quarter of the group's time-out.{more}"
    )


def _made(trace: Trace, op: Op, who: Sequence[int]) -> str:
    """The group that a call makes."""
    if op.call.op == "init_process_group":
        return "the default group"
    return f"the group of {sentences.processes(trace, who)}"
