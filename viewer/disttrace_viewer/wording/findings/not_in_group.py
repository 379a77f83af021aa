"""A root, source or destination is no member of the group: who named which rank, and where."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set

from disttrace_viewer.evidence.waits.wait import Wait
from disttrace_viewer.trace.model import Location, Trace
from disttrace_viewer.trace.process import Process
from disttrace_viewer.wording import sentences

HINT = (
    "torch wants global ranks for src and dst; ranks within the group go by group_src and"
    " group_dst, or get_global_rank() translates them."
)
ITSELF = (
    "A rank cannot be at both ends of a message: look at how this line comes to the other end (a"
    " table of stages, rank + 1 at the end of a ring, a number of ranks that is one)."
)
FORKED = (
    "A group does not survive a fork: make one in the child (spawn it, and call init_process_group"
    " there), or communicate in the parent."
)


def inherited(trace: Trace, wait: Wait, parent: Process, waited_ns: int) -> str:
    """Which child waits where; ``parent``: whose group it is."""
    child = trace.processes[wait.process]
    return (
        f"Process {child.pid}, a forked child of {parent.label}, has been in"
        f" {sentences.call(trace, wait.op)} for"
        f" {sentences.span(waited_ns)}: it inherited that group, and nobody knows it there."
    )


def summary(
    trace: Trace,
    named: Mapping[int, int],
    where: Mapping[int, Location | None],
    members: Sequence[int] | None,
) -> str:
    """``named``: the rank that each process named, at a line."""
    told = ((f"rank {rank}{sentences.aside(where[p])}", p) for p, rank in named.items())
    text = sentences.capital(sentences.sides(trace, told, "names", "name"))
    no_member = "no member" if len(set(named.values())) == 1 else "not among the members"
    whole = "the group" if members is None else list(members)
    return f"{text}, {no_member} of {whole}."


def to_itself(
    trace: Trace, who: Sequence[int], where: Mapping[int, Location | None], sending: Set[int]
) -> str:
    """Whoever is not ``sending`` to itself receives from itself."""
    told = sentences.together(
        (f"{'sends to' if p in sending else 'receives from'} itself{sentences.aside(where[p])}", p)
        for p in who
    )
    each = {text: "" if len(of) == 1 else "each of " for text, of in told.items()}
    said = [f"{each[text]}{sentences.processes(trace, of)} {text}" for text, of in told.items()]
    return f"{sentences.capital(sentences.listed(said))}."
