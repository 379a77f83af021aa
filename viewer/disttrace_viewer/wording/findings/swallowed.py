"""A call raised on some ranks, which went on without it, while the others are in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from disttrace_viewer.trace.model import Trace
from disttrace_viewer.trace.operation import Op
from disttrace_viewer.wording import sentences
from disttrace_viewer.wording.ends import cut
from disttrace_viewer.wording.quantities import few

JUST_BEFORE = "Just before, "
THEN = "Then "


def sentence(
    trace: Trace,
    raised: Sequence[Op],
    within: Mapping[tuple[int, int], str | None],
    lead: str,
) -> str:
    """What raised where, on whom. ``within``: of each the operation that the program called;
    ``lead``: when that was.
    """

    def call(op: Op) -> str:
        return f"{op.call.op}{sentences.inside(within[op.id])} ({sentences.line(op)})"

    calls = sentences.together(((call(op), cut(op.error or "")), op.process) for op in raised)
    told = [
        f"{text} raised on {sentences.processes(trace, who)}, which went on without it: {error}"
        for (text, error), who in calls.items()
    ]
    return f"{lead}{few(told, sentences.MANY, '; ')}."


def hint(trace: Trace, raised: Sequence[Op]) -> str:
    """What to read first, and what to change."""
    who = sentences.processes(trace, [op.process for op in raised])
    lines = sentences.listed(list(dict.fromkeys(sentences.line(op) for op in raised)))
    errors = few(list(dict.fromkeys(cut(op.error or "") for op in raised)), sentences.MANY, "; ")
    return (
        f"Find why the call at {lines} raised on {who} ({errors}), and do not go on"
        " without it there (`except`, `finally`) where the others are in it: the next call meets"
        " theirs."
    )
