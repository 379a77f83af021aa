"""Who waits for whom in a cycle, and in which order they should."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from disttrace_viewer.evidence.waits.wait import KEY, MESSAGE, Wait
from disttrace_viewer.trace.model import Trace
from disttrace_viewer.trace.operation import Op
from disttrace_viewer.trace.process import Failure
from disttrace_viewer.wording import sentences
from disttrace_viewer.wording.findings import outside
from disttrace_viewer.wording.quantities import few

WAITS_FOR = "waits for"
"""The relation of a cycle's edges in ``diagnose --json``."""
SET_FIRST = "Set the key before the call in which its setter waits, or wait for it after that."
ONE_SENDS = (
    "Let one side send first and the other receive first, or post both without waiting"
    " (batch_isend_irecv)."
)
GROUPS = (
    "Look for a call that one of these ranks left out (a condition on the rank or on the data); if"
    " each of them makes all of these calls, use the groups in one order on all ranks."
)
_ORDER = ", or for groups used in another order"
CALLS = "Bring the calls of these ranks into one order."


@dataclass(frozen=True, slots=True)
class Edge:
    """Along a cycle each wait, the operation around its own, and for whom it is."""

    wait: Wait
    within: str | None
    target: int
    ended: Sequence[int] = ()
    """Who might have ended a wait for any of several, and is gone."""

    @property
    def any_of(self) -> list[int]:
        """Those of several who wait as well, where any of them might end the wait."""
        return [p for p in self.wait.targets if p not in self.ended] if self.wait.any_of else []


def summary(trace: Trace, edges: Sequence[Edge]) -> str:
    """Edge by edge."""
    label = {edge.target: trace.processes[edge.target].label for edge in edges}
    told = [
        f"{label[edge.wait.process]} {'asks for' if edge.wait.polled else 'is in'}"
        f" {_detail(trace, edge.wait, edge.within)} ({sentences.line(edge.wait.op)}) and waits for"
        f" {_whom(trace, edge)}{_expected(edge.wait)}"
        for edge in edges
    ]
    said = few(told, sentences.MANY, "; ")
    # Who waits for any of several is in a cycle with each of them, of which one is told.
    any_of = [process for edge in edges for process in edge.any_of]
    who = sentences.subject(trace, {edge.wait.process for edge in edges}.union(any_of))
    return f"{who} wait for one another: {said}."


def _whom(trace: Trace, edge: Edge) -> str:
    whom = trace.processes[edge.target].label
    if len(edge.any_of) > 1:
        whom = f"any of {sentences.processes(trace, edge.any_of)}, which all wait"
    if edge.ended:
        gone = sentences.processes(trace, edge.ended)
        whom += f" ({gone} {sentences.have(edge.ended)} ended)"
    return whom


def _detail(trace: Trace, wait: Wait, within: str | None) -> str:
    text = sentences.operation(trace, wait.op, within)
    return f"{text}, {sentences.sizes(wait.op)}" if wait.kind == MESSAGE else text


def _expected(wait: Wait) -> str:
    if wait.polled:
        return ", which has set all such keys but this"
    return ", which alone has set such keys" if wait.kind == KEY else ""


def left_out(trace: Trace, wait: Wait, instead: Wait, *, both: bool) -> str:
    """Several wait in ``wait`` for one that is in ``instead``; ``both``: each side has used the
    group of the other one before.
    """
    one = trace.processes[instead.process].label
    return (
        f"{sentences.capital(one)} went on to {sentences.call(trace, instead.op)}"
        f" without {sentences.operation(trace, wait.op)}, in"
        f" which {sentences.processes(trace, wait.arrived)} are: look for a call that it left out"
        f" (a condition on the rank or on the data){_ORDER * both}."
    )


def short(trace: Trace, sides: Sequence[tuple[Wait, int, int]]) -> str:
    """Collectives of two groups, each with who lacks in it and how many calls that one has made. To
    have another order takes that both have used both groups.
    """
    told = []
    for wait, process, done in sides:
        lacks = (wait.op.seq or 0) - done
        calls = "one call" if lacks == 1 else f"{lacks:,} calls"
        group = sentences.group(trace.groups[wait.op.call.group or 0], trace)
        told.append(
            f"{trace.processes[process].label} is {calls} short in {group}"
            f" ({f'{done:,}' if done else 'none'} against {wait.op.seq:,} of"
            f" {sentences.processes(trace, wait.arrived)})"
        )
    order = _ORDER * all(done for _, _, done in sides)
    return (
        f"{sentences.capital(', or '.join(told))}: look for a call that was left out, or made once"
        f" too often (a condition on the rank or on the data), maybe long before{order}."
    )


def passed_over(trace: Trace, wait: Wait, since: Op) -> str:
    """What to look for where the other end of the oldest message went on with others, ``since``."""
    one, other = trace.processes[wait.process].label, trace.processes[since.process].label
    mine, theirs = ("send", "receive") if wait.op.call.op == "send" else ("receive", "send")
    return (
        f"{sentences.capital(other)} came through {sentences.call(trace, since)}"
        f" since {one} is in that {mine}: look for the {theirs} that it"
        " left out (a condition on the rank, a batch that is shorter there), or let both post them"
        " in one order."
    )


def or_order(question: str) -> str:
    """Messages in a cycle of which one may have the wrong address: else it is their order."""
    return f"{question} If it is: {ONE_SENDS[:1].lower()}{ONE_SENDS[1:]}"


def other_threads(trace: Trace, failed: tuple[int, Failure] | None, who: Iterable[int]) -> str:
    """What to do where other threads than those that wait make the calls; one may have failed."""
    if failed is not None:
        label, exception = trace.processes[failed[0]].label, outside.raised(failed[1])
        return f"Read the exception of a thread of {label} first: {exception}."
    return (
        f"The calls there are made by other threads of {sentences.processes(trace, who)} than those"
        " that wait: look at what these do, and whether they still run."
    )


def all_came(trace: Trace, wait: Wait, sent: Mapping[int, int]) -> str:
    """Who receives from any source has all that was sent to it, and wants more."""
    by_count = sentences.together((count, process) for process, count in sent.items())
    told = sentences.listed(
        [
            f"{f'{count:,}' if count else 'none'} from {sentences.processes(trace, who)}"
            for count, who in sorted(by_count.items(), reverse=True)
        ]
    )
    return (
        f"{sentences.subject(trace, [wait.process])} has received all that was sent to it ({told})"
        " and waits for one more: let it receive as often as they send, each by its own count, and"
        " let them send before they wait for it."
    )


def counted(trace: Trace, wait: Wait) -> str:
    """One side of a message went on to a collective: how often each of them has called."""
    count = wait.op.seq or 1
    mine, theirs = ("receive", "sent") if wait.op.call.op == "recv" else ("send", "received")
    done = "none" if count == 1 else f"only {count - 1:,}"
    return (
        f"{sentences.subject(trace, [wait.process])} is at {mine} #{count:,} with"
        f" {sentences.processes(trace, wait.targets)}, which has {theirs} {done} and went on to a"
        " collective: make both sides call equally often, and before it."
    )
