"""The device of a rank is not through with what the devices of all others are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from disttrace_viewer.analysis.process_ends import CLEAN
from disttrace_viewer.evidence.waits.wait import MESSAGE, Wait
from disttrace_viewer.findings import troubles
from disttrace_viewer.findings.case import Case
from disttrace_viewer.findings.finding import Finding, Scope, why
from disttrace_viewer.findings.rules import no_progress
from disttrace_viewer.trace.model import Trace
from disttrace_viewer.trace.operation import Op
from disttrace_viewer.trace.process import JOURNAL
from disttrace_viewer.wording import sentences
from disttrace_viewer.wording.reasons import ALL_CAME


def find(case: Case) -> Iterator[Finding]:
    """One finding on all whose devices are not through with what those of the others are."""
    evidence = case.evidence
    stuck = [
        wait
        for wait in case.oldest()
        if evidence.stuck_devices.get(wait.process) == wait.op
        and case.old(wait)
        and case.knows("occasion", [wait.process])
        and evidence.ends[wait.process].how != CLEAN
        and not no_progress.host_is_ahead(case, wait, [wait.process])
    ]
    if not stuck:
        return
    who = case.by_rank(wait.process for wait in stuck)
    first, *more = stuck
    told = troubles.around(case, first, {*who})
    yield Finding(
        kind="no_progress",
        summary=summary(evidence.trace, [wait.op for wait in stuck])
        + no_progress.said(evidence.trace, told),
        because=why((not all(_is_told_of(case, wait) for wait in stuck), ALL_CAME)),
        culprits=tuple(who),
        device=True,
        hint=no_progress.HINTS[told[0][1].where] if told else HINT,
        waiting=tuple(who),
        op=first.op.call.op,
        group=None if more else evidence.trace.group_id(first.op.call),
        seq=None if more else first.op.seq,
        locations=evidence.locations(wait.op for wait in stuck),
        at_ns=first.op.begin_ns,
        scope=Scope(exchanges=frozenset(w.exchange for w in stuck), roots=frozenset(who)),
    )


def _is_told_of(case: Case, wait: Wait) -> bool:
    """Whether torch recorded of all others of an exchange that their devices are through with it:
    in a journal the end of this one may have been missed.
    """
    evidence = case.evidence
    others = evidence.sample.partners(wait.op)
    known = [evidence.trace.processes[p] for p in (wait.process, *(one.process for one in others))]
    size = 2 if wait.kind == MESSAGE else evidence.trace.groups[wait.op.call.group or 0].size
    return (
        len(others) + 1 == size
        and all(one.status == "ok" for one in others)
        and not any(one.source == JOURNAL or "ends" in one.lacks for one in known)
    )


def summary(trace: Trace, ops: Sequence[Op]) -> str:
    """``ops``: the first operation of each with which its device is not through."""
    alike = sentences.together((sentences.operation(trace, op), op.process) for op in ops)
    parts = [
        f"{sentences.processes(trace, who)} {'is' if len(who) == 1 else 'are'} not through with"
        f" {name}"
        for name, who in alike.items()
    ]
    whose = sentences.processes(trace, [op.process for op in ops])
    devices, do = ("device", "does") if len(ops) == 1 else ("devices", "do")
    most = "all" if len(parts) == len(ops) else "most"
    return (
        f"The {devices} of {whose} {do} not get on: {sentences.listed(parts)}, and those of {most}"
        " other members are."
    )


HINT = (
    "Look at this device and its host first (nvidia-smi -q, dmesg for an Xid), and at a kernel or a"
    " CUDA call that does not return there: py-spy dump --native of the process."
)
