"""What to look for where one side skipped a call, or made one more."""

from __future__ import annotations

from dataclasses import dataclass

from disttrace_viewer.trace.model import Trace
from disttrace_viewer.trace.operation import Op
from disttrace_viewer.wording import sentences


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
    at, due = sentences.line(found.op), sentences.line(found.instead)
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
