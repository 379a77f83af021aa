"""A rank makes others wait again and again at one line; asynchronous work is never waited for."""

from __future__ import annotations

from collections.abc import Iterator

from disttrace.journal.code_files import BUILT_IN, is_library
from disttrace_viewer.analysis.past import Late
from disttrace_viewer.analysis.sample import innermost
from disttrace_viewer.findings.case import Case
from disttrace_viewer.findings.finding import ERROR, NOTE, WARNING, RuleFinding, why
from disttrace_viewer.findings.rules import waiting_for_input
from disttrace_viewer.trace.model import CodeLocation, JobTrace
from disttrace_viewer.wording import sentences

LOOKING_NS = 100_000_000
WARN_NS = 10_000_000
"""A delay is worth a warning from here on, and above what the clocks leave open."""


def find(case: Case) -> Iterator[RuleFinding]:
    """One warning per process and line; only where nothing is broken."""
    if any(f.severity == ERROR for f in case.findings):
        return
    idle = {p for f in case.findings if f.kind == waiting_for_input.KIND for p in f.scope.roots}
    for late in case.past.late():
        worth = late.median_ns >= max(WARN_NS, 2 * late.error_ns)
        if worth and late.process not in idle and not _idle(late):
            yield _finding(case.trace, late)


def _idle(late: Late) -> bool:
    """Whether it is the source of what the others wait in, and waits for input before that. To
    sleep for a moment is work, in a program that imitates it; for longer, a look now and then.
    """
    call = late.call
    if late.kind == "straggler" and (call.root is None or call.root != call.group_rank):
        return False
    idle = [
        waiting_for_input.for_input(stack)
        and (stack[0][::2] != (BUILT_IN, "sleep") or late.median_ns >= LOOKING_NS)
        for stack in late.stacks
    ]
    return 2 * sum(idle) > len(idle)


def _finding(trace: JobTrace, late: Late) -> RuleFinding:
    where = innermost(late.call.stack)
    after = None  # the call of a pool's thread has no line of the program
    if where is not None and is_library(where.file) and late.after is not None:
        after = None if is_library(late.after.file) else late.after
    at, span = "", "between its communication before and this line"
    if after is not None:
        span = "after this line until a thread of a pool communicates for it"
        where, at = after, f" after {sentences.is_at(after)}"
    elif where is not None:
        at = f" before {sentences.is_at(where)}"
    does = "sends late" if late.kind != "straggler" else f"comes late to {late.call.op}"
    return RuleFinding(
        kind=late.kind,
        severity=WARNING,
        because=why((late.apart, sentences.CLOCKS)),
        summary=f"{sentences.subject(trace, [late.process])} {does} by"
        f" {sentences.span(late.median_ns)} in {late.times} of {late.of} cases{at};"
        f" {sentences.processes(trace, late.others)} waited {sentences.span(late.waited_ns)} for it"
        " in total.",
        hint=f"Look at what this rank does {span}: data loading, logging, a slower device, or more"
        " work than the others.",
        culprits=(late.process,),
        waiting=late.others,
        op=late.call.op,
        group=late.group,
        locations=() if where is None else (CodeLocation.at(late.process, where, late.call.op),),
        at_ns=late.first_ns,
    )


def find_unwaited(case: Case) -> Iterator[RuleFinding]:
    """One note per call site."""
    for found in case.past.unwaited():
        op = found.first
        again = f", {found.times:,} times" if found.times > 1 else ""
        yield RuleFinding(
            kind="unwaited_work",
            severity=NOTE,
            because=(sentences.KEPT,),
            summary=f"{sentences.subject(case.trace, found.processes)} never waited for"
            f" {op.call.op} at {sentences.line(op)}{again}, and dropped the Work.",
            hint="Keep the Work and wait for it before the tensors are used or freed.",
            culprits=found.processes,
            op=op.call.op,
            group=found.group,
            seq=op.seq,
            at_ns=op.begin_ns,
            locations=case.evidence.locations([op]),
        )
