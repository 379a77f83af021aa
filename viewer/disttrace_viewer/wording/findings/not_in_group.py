"""A root, source or destination is no member of the group: who named which rank, and where."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from disttrace_viewer.analysis.process_ends import End
from disttrace_viewer.trace.model import Location, Trace
from disttrace_viewer.wording import sentences
from disttrace_viewer.wording.ends import ended

HINT = (
    "torch wants global ranks for src and dst; ranks within the group go by group_src and"
    " group_dst, or get_global_rank() translates them."
)


def summary(
    trace: Trace,
    named: Mapping[int, int],
    where: Mapping[int, Location | None],
    members: Sequence[int] | None,
    *,
    itself: bool,
) -> str:
    """``named``: the rank that each process named, at a line; ``itself``: its own."""
    told = ((f"rank {rank}{sentences.aside(where[p])}", p) for p, rank in named.items())
    text = sentences.capital(sentences.sides(trace, told, "names", "name"))
    if itself:
        return f"{text}, which is itself and no other member."
    no_member = "no member" if len(set(named.values())) == 1 else "not among the members"
    whole = "the group" if members is None else list(members)
    return f"{text}, {no_member} of {whole}."


def consequence(trace: Trace, who: Sequence[int], end: End) -> str:
    """How they ended."""
    return f"{sentences.subject(trace, who)} {ended(end)}."
