"""Members of a group are out of step: since when, by which call, and what came of it."""

from __future__ import annotations

import math
from collections.abc import Sequence

from disttrace_viewer.analysis.out_of_step import SKIPPED, SWAPPED, Shift
from disttrace_viewer.evidence.courses import Habit, Place
from disttrace_viewer.trace.model import Group, Trace
from disttrace_viewer.wording import sentences

_HINT = (
    "Look for a branch, a `continue`, a `break` or an exception that was caught before that call."
    " Everything that was exchanged since is of different calls: do not trust the results."
)
_ORDER = "Look for what decides the order there: a dictionary, a set, threads, or a branch by rank."


def hint(shift: Shift[int, Place]) -> str:
    """What to look for."""
    return _ORDER if shift.how == SWAPPED else _HINT


def habit(trace: Trace, group: Group, habits: Sequence[Habit]) -> str:
    """Members that always come to a call by lines of their own."""
    first = habits[0]
    op = first.lines[0][0][0]

    def lowest(line: tuple[Place, tuple[int, ...]]) -> float:
        known = (trace.processes[i].rank for i in line[1])
        return min((rank for rank in known if rank is not None), default=math.inf)

    lines = sentences.listed(
        [
            f"{sentences.processes(trace, members)} at {sentences.place(frame)}"
            for (_, frame), members in sorted(first.lines, key=lowest)
        ]
    )
    more = f", and so it is with {len(habits) - 1} more of their lines" if len(habits) > 1 else ""
    return (
        f"{op} of {sentences.group(group, trace)} is always called by {lines}"
        f" ({first.times:,} times, first #{first.first}){more}: a branch by rank, in step."
    )


def summary(trace: Trace, group: Group, shift: Shift[int, Place], mixed: int) -> str:
    """Who is out of step with whom, since when and why."""
    others = sentences.processes(trace, shift.others)
    who = sentences.subject(trace, shift.members)
    are = "is" if len(shift.members) == 1 else "are"
    where = sentences.group(group, trace)
    if shift.how == SWAPPED:
        told = f"{who} called in another order than {others} in {where} at #{shift.number}"
        return f"{told}: {_did(trace, shift)}; {_results(mixed)} mixed."
    return (
        f"{who} {are} out of step with {others} in {where} {_since(shift)}:"
        f" {_did(trace, shift)}; {_results(mixed)} mixed."
    )


def traced_back(
    trace: Trace, summary: str, shift: Shift[int, Place], mixed: int, group: Group | None
) -> str:
    """What an error says, and since when its group was out of step; ``group``: where it is about
    several.
    """
    where = "" if group is None else f"in {sentences.group(group, trace)} "
    return (
        f"{summary} Out of step {where}{_since(shift)}: {_did(trace, shift)};"
        f" {_results(mixed, 'before it ')} mixed."
    )


def by_other_lines(
    trace: Trace,
    summary: str,
    group: Group,
    number: int,
    sides: Sequence[tuple[Place, Sequence[int]]],
    *,
    last: bool,
) -> str:
    """What an error says, and from which lines a collective before it was called: the last one, or
    one from which on lines differ.
    """
    told = sentences.listed(
        [f"{sentences.processes(trace, who)} by {_call(place)}" for place, who in sides]
    )
    which = "the last that all have made" if last else "from which on lines differ"
    return (
        f"{summary} To #{number} of {sentences.group(group, trace)}, {which}, came {told}: one of"
        " these lines was left out, or called twice."
    )


def _since(shift: Shift[int, Place]) -> str:
    if shift.earliest == shift.number:
        return f"since #{shift.number}"
    return f"since a call between #{shift.earliest} and #{shift.number}"


def _results(count: int, when: str = "since ") -> str:
    return f"{count:,} result {when}was" if count == 1 else f"{count:,} results {when}were"


def _did(trace: Trace, shift: Shift[int, Place]) -> str:
    """What the members did; what the others may have done instead, where nothing decides."""
    who = sentences.processes(trace, shift.members)
    others = sentences.processes(trace, shift.others)
    calls = _calls(shift)
    if shift.how == SWAPPED:
        return f"{who} made {calls} before {_call(shift.met)}"
    if shift.how == SKIPPED:
        twice = " (or made the call before it twice)" * shift.doubled
        return f"{who} skipped {calls}{twice}" + (
            "" if shift.decided else f", or {others} made {_them(shift)} in addition"
        )
    more = f"{who} made {_count(shift)} more, {calls}"
    return more + ("" if shift.decided else f", or {others} skipped {_them(shift)}")


def _them(shift: Shift[int, Place]) -> str:
    return "it" if len(shift.calls) == 1 else "them"


def _count(shift: Shift[int, Place]) -> str:
    return "one call" if len(shift.calls) == 1 else f"{len(shift.calls)} calls"


def _calls(shift: Shift[int, Place]) -> str:
    distinct = list(dict.fromkeys(map(_call, shift.calls)))
    if len(shift.calls) > 1 and len(distinct) == 1:
        return f"{len(shift.calls)} calls of {distinct[0]}"
    return sentences.listed(distinct)


def _call(place: Place) -> str:
    op, frame = place
    return op if frame is None else f"{op} at {sentences.place(frame)}"
