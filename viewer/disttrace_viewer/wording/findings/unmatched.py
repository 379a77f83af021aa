"""A message with one end: who waits in which, and where to find the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from disttrace_viewer.evidence.waits.wait import Wait
from disttrace_viewer.trace.model import Trace
from disttrace_viewer.trace.operation import Op
from disttrace_viewer.wording import sentences
from disttrace_viewer.wording.findings import late_arrivals, outside
from disttrace_viewer.wording.findings.late_arrivals import Held
from disttrace_viewer.wording.findings.outside import Doing

ONE_TAG = "Give both ends one tag; where both tags are used, post them in one order on both ends."


def facing(trace: Trace, send: Op, receive: Op) -> str:
    """Two ends of one direction that differ in the tag."""
    return (
        f"{sentences.subject(trace, [send.process])} sends to"
        f" {sentences.processes(trace, [receive.process])} with tag {send.call.tag}"
        f" ({sentences.line(send)}), which receives with tag {receive.call.tag}"
        f" ({sentences.line(receive)}): the two never meet."
    )


def summary(
    trace: Trace,
    wait: Wait,
    waited_ns: int,
    *,
    others: Sequence[int],
    doing: Mapping[int, Doing],
    held: Mapping[int, Held],
) -> str:
    """``others`` should have posted the other end, and are ``doing`` something else; those who came
    too late were ``held`` up.
    """
    op = wait.op
    verb = "send" if op.call.op == "recv" else "receive"
    waited = "waited" if op.error is not None else "has been waiting"
    who = sentences.processes(trace, others)
    been = (
        f"{sentences.subject(trace, [op.process])} {waited} in {sentences.operation(trace, op)}"
        f" ({sentences.line(op)}, {sentences.sizes(op)}) for {sentences.span(waited_ns)}"
    )
    if wait.lateness:
        by = sentences.span(wait.lateness[0][1])
        return (
            f"{been} and gave up; {who} posted the {verb} {by} later"
            f"{late_arrivals.words(trace, held)}."
        )
    if not others:
        return f"{been}, but of {sentences.ranks(wait.absent)} no journal was found."
    never = f"{who} never {verb if len(others) > 1 else verb + 's'}"
    nobody = f"nobody {verb}s: " if wait.any_of else ""
    return f"{been}, but {nobody}{never}{outside.where(trace, doing, named=True)}."


def hint(op: Op) -> str:
    """What to find, of an end that waits."""
    return (
        f"Find the {'send' if op.call.op == 'recv' else 'receive'} that should match it: is it"
        " under a condition, or in a batch that one side left shorter?"
    )
