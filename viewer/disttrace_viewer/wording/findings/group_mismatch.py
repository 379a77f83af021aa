"""Processes disagree on a group's creation: what each of them makes, or who went past it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from disttrace_viewer.trace.model import Trace
from disttrace_viewer.trace.operation import Op
from disttrace_viewer.wording import sentences

HINT = (
    "Every process must call new_group for every group, members or not, in one order with the same"
    " ranks (or pass use_local_synchronization=True)."
)

EITHER = f"{HINT} Or look for a call before it that those who make the group have left out."

ONE_NAME = (
    "Make the same groups in the same order in all members of this one, or pass"
    " use_local_synchronization=False."
)

Made = Iterable[tuple[Op, Sequence[int]]]
"""Calls of new_group with the ranks that they name."""


def differ(trace: Trace, position: int, made: Made) -> str:
    """The calls at one position name other ranks."""
    return (
        f"In call {position + 1} of new_group, the processes do not make the same group:"
        f" {_makes(trace, made)}."
    )


def went_past(
    trace: Trace, position: int, made: Made, past: Sequence[int], inside: Sequence[Op]
) -> str:
    """``past``: those who did not make the call, and are ``inside`` other operations."""
    who, one = sentences.processes(trace, past), len(past) == 1
    then = f"{'has' if one else 'have'} ended"
    if inside:
        shown = dict.fromkeys(sentences.call(trace, op) for op in inside)
        then = f"{'is' if one else 'are'} in {sentences.listed(list(shown))}"
    return (
        f"In call {position + 1} of new_group, {_makes(trace, made)}, but {who} went past it and"
        f" {then}."
    )


def two_names(trace: Trace, made: Iterable[tuple[Op, str]]) -> str:
    """The same group, and the prefix under which each of its members makes it."""
    told = ((f"it under {name!r} ({sentences.line(op)})", op.process) for op, name in made)
    return (
        "Members of one group make it under different names in the same store, so they wait for"
        f" each other: {sentences.sides(trace, told, 'makes', 'make')}. One of them has made more"
        " such groups before, or fewer."
    )


def _makes(trace: Trace, made: Made) -> str:
    told = ((f"{list(ranks)} ({sentences.line(op)})", op.process) for op, ranks in made)
    return sentences.sides(trace, told, "makes", "make")
