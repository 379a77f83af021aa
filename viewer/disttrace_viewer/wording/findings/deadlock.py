"""Who waits for whom in a cycle, and in which order they should."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from disttrace_viewer.evidence.wait_graph import KEY, MESSAGE, Wait
from disttrace_viewer.trace.model import Failure, Trace
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
GROUPS = "Use the groups in one order on all ranks."
CALLS = "Bring the calls of these ranks into one order."


def summary(trace: Trace, edges: Sequence[tuple[Wait, str | None, int]]) -> str:
    """``edges``: along the cycle each wait, the operation around its own, and for whom it is."""
    label = {p: trace.processes[p].label for _, _, p in edges}
    told = [
        f"{label[wait.process]} {'asks for' if wait.polled else 'is in'}"
        f" {_detail(trace, wait, within)} ({sentences.line(wait.op)}) and waits for"
        f" {label[target]}{_expected(wait)}"
        for wait, within, target in edges
    ]
    said = few(told, sentences.MANY, "; ")
    who = sentences.processes(trace, [wait.process for wait, _, _ in edges])
    return f"{who.capitalize()} wait for one another: {said}."


def _detail(trace: Trace, wait: Wait, within: str | None) -> str:
    text = sentences.operation(trace, wait.op, within)
    return f"{text}, {sentences.sizes(wait.op)}" if wait.kind == MESSAGE else text


def _expected(wait: Wait) -> str:
    if wait.polled:
        return ", which has set all such keys but this"
    return ", which alone has set such keys" if wait.kind == KEY else ""


def left_out(trace: Trace, wait: Wait, instead: Wait) -> str:
    """Several wait in ``wait`` for one that is in ``instead``."""
    one = trace.processes[instead.process].label
    return (
        f"{sentences.capital(one)} went on to {sentences.operation(trace, instead.op)}"
        f" ({sentences.line(instead.op)}) without {sentences.operation(trace, wait.op)}, in"
        f" which {sentences.processes(trace, wait.arrived)} are: look for a call that it left out"
        " (a condition on the rank or on the data), or for groups used in another order."
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
