"""Part of findings about one end: whether whoever waits may have addressed the wrong one.

Rank 0 sends to rank 2, which is busy, while rank 1 receives from rank 0: then it is as likely that
the destination is wrong as that rank 2 is late. The same for a collective in one group while
somebody is at the same line in another group that lacks only this rank.
"""

from __future__ import annotations

from disttrace_viewer.analysis.operation import frame
from disttrace_viewer.evidence.waits.wait import COLLECTIVE, MESSAGE, Wait
from disttrace_viewer.findings.case import Case
from disttrace_viewer.trace.model import Trace
from disttrace_viewer.wording import sentences


def partner(case: Case, wait: Wait) -> Wait | None:
    """Who waits for the one who waits, in the way that a right address would have met.

    None where this very call has met its other end before: then that is where it belongs.
    """
    if not possible(case, wait):
        return None
    for other in case.awaiting(wait.process):
        if other.side or other.kind != wait.kind:
            continue
        if wait.kind == MESSAGE and other.op.call.op != wait.op.call.op:
            return other
        if wait.kind == COLLECTIVE and _same_line(wait, other):
            return other
    return None


def possible(case: Case, wait: Wait) -> bool:
    """Whether anybody may wait for the one who waits because that one addressed the wrong one."""
    if case.evidence.longest_ns(wait.op) > 0:
        return False
    if wait.kind != COLLECTIVE:
        return wait.kind == MESSAGE
    trace = case.evidence.trace
    return any(
        group != wait.op.call.group and (trace.groups[group].size or 2) > 1
        for group in trace.groups_by_process.get(wait.process, ())
    )


def _same_line(one: Wait, two: Wait) -> bool:
    here, there = frame(one.op), frame(two.op)
    return here is not None and here == there and one.op.call.group != two.op.call.group


def question(trace: Trace, wait: Wait, other: Wait) -> str:
    """``wait`` is for somebody else than the one who waits, in ``other``, for its process."""
    one, two = (trace.processes[w.process].label for w in (wait, other))
    here, there = (sentences.call(trace, w.op) for w in (wait, other))
    asked = "group" if wait.kind == COLLECTIVE else "source"
    if wait.kind == MESSAGE and wait.op.call.op == "send":
        asked = "destination"
    return (
        f"{one} is in {here} while {two} is in {there} and waits for {one}: is the {asked} right?"
    )


def asked(summary: str, trace: Trace, wait: Wait, other: Wait | None) -> str:
    """A summary, and the question behind it where there is an ``other``."""
    return summary if other is None else f"{summary[:-1]}; {question(trace, wait, other)}"
