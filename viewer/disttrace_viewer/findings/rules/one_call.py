"""Part of findings about differing calls: whether one side skipped a call, or made one more.

Two calls that differ may not have been meant for one another. What all members did before tells:
after the same call, one side did what always came next, and the other one did something else.
"""

from __future__ import annotations

from dataclasses import dataclass

from disttrace_viewer.analysis.operation import Site, branch, lines_of, site
from disttrace_viewer.evidence.courses import aligned
from disttrace_viewer.findings.case import Case
from disttrace_viewer.trace.model import Trace
from disttrace_viewer.trace.operation import Op
from disttrace_viewer.wording import sentences


def find(case: Case, one: Op, two: Op, *, ones: list[int], twos: list[int]) -> OneCall | None:
    """Which side left the usual order, if their calls come from different lines.

    ``one`` and ``two`` are the calls of two members under one number; ``ones`` and ``twos`` the
    processes that called like them.
    """
    stream = one.call.stream
    mine = case.course(one.process, stream)
    theirs = case.course(two.process, stream)
    if one.seq is None or mine is None or theirs is None:
        return None
    first, called = aligned({one.process: mine, two.process: theirs})
    before = [
        [site(call) for call in calls[: max(0, one.seq - first)]] for calls in called.values()
    ]
    here, there = site(one.call), site(two.call)
    if here == there or len(before) < 2 or before[0] != before[1] or not before[0]:
        return None
    usual = _after(before[0], before[0][-1])
    # Who is where the others would be after their call has left that one out.
    if usual == here and _after(before[0], here) == there:
        return OneCall(tuple(twos), one, two, skipped=True)
    if usual == there and _after(before[0], there) == here:
        return OneCall(tuple(ones), two, one, skipped=True)
    if usual == there and here not in before[0]:
        return OneCall(tuple(ones), one, two, skipped=False, others=tuple(twos))
    if usual == here and there not in before[0]:
        return OneCall(tuple(twos), two, one, skipped=False, others=tuple(ones))
    return None


def _after(course: list[Site], site: Site) -> Site | None:
    """What followed a call the last time that something did."""
    return next((b for a, b in zip(course[-2::-1], course[:0:-1], strict=True) if a == site), None)


@dataclass(frozen=True, slots=True)
class OneCall:
    """``who`` left out the call ``op`` of the others (``skipped``), or made it beyond theirs.

    ``instead``: the call on the other side. Where ``op`` was never made before, nobody knows
    whether it was made too many, or ``instead`` was left out.
    """

    who: tuple[int, ...]
    op: Op
    instead: Op
    skipped: bool
    others: tuple[int, ...] = ()
    """Those on the other side."""


def hint(trace: Trace, found: OneCall) -> str:
    """What to look for."""
    who = sentences.subject(trace, found.who)
    at, due = (
        sentences.line_of(op, branch(op, lines_of([other])))
        for op, other in ((found.op, found.instead), (found.instead, found.op))
    )
    if found.skipped:
        return (
            f"{who} skipped the call at {at}, after which all calls of both sides are the same"
            " again: look for a branch, a `continue` or an empty batch before it."
        )
    if len(found.who) > len(found.others) > 0:
        return (
            f"{sentences.subject(trace, found.others)} skipped the call at {at}, which"
            f" {sentences.processes(trace, found.who)} make, or made one more at {due} before"
            " it: look for a branch on the rank, an exception that was caught, or more"
            " batches before that."
        )
    return (
        f"{who} made one more call, at {at}, or left out the one at {due} and went on: look"
        " for a collective inside `if rank ...`, or for a `continue`, a `break` or fewer"
        " batches before that."
    )
