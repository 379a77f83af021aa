"""What the members of each group called, number by number, and where they are out of step."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from disttrace_viewer.analysis.out_of_step import SWAPPED, Shift, first_shift
from disttrace_viewer.analysis.past import Place, callers_of, op_of, place_of
from disttrace_viewer.analysis.sample import Course, together
from disttrace_viewer.evidence.evidence import Evidence
from disttrace_viewer.trace.model import Call, Stream
from disttrace_viewer.trace.process import Stack
from disttrace_viewer.trace.values import dataclass

OFTEN = 3
"""So often lines have to meet to be a habit."""


@dataclass(frozen=True, slots=True)
class Habit:
    """Members that always come to a call by a line of their own, under the same numbers."""

    first: int
    """The number of the first such call."""
    times: int
    lines: tuple[tuple[Place, tuple[int, ...]], ...]
    """Each line with the members (processes) that are at it."""


@dataclass(frozen=True, slots=True)
class Steps:
    """Where members of groups are out of step, and of those that are not what they do otherwise."""

    shifts: Mapping[Stream, Shift[int, Place]]
    """By stream the first place from which on they are."""
    habits: Mapping[Stream, Sequence[Habit]]


def steps(evidence: Evidence, past: Iterable[tuple[Stream, Mapping[int, Course]]]) -> Steps:
    """``past``: sequences of streams whose members called from different lines, if read."""
    shifts, habits = {}, {}
    for stream, courses in {**dict(_kept(evidence)), **dict(past)}.items():
        group = None if stream[0] is None else evidence.trace.groups[stream[0]]
        if group is None or len(courses) < 2:
            continue
        first, made = aligned(courses)
        calls = {call.index: call for of in made.values() for call in of}
        places = {index: place_of(call) for index, call in calls.items()}
        called = {p: [places[call.index] for call in of] for p, of in made.items()}
        shift = _shift(evidence, stream, called, group.size)
        if shift is None and (callers := called_from(calls, places)) != places:
            by_callers = {p: [callers[call.index] for call in of] for p, of in made.items()}
            shift = _shift(evidence, stream, by_callers, group.size)
        if shift is not None:
            shifts[stream] = shift.later(first - 1)
        elif called and (found := habits_of(called, first)):
            habits[stream] = found
    return Steps(shifts, habits)


def habits_of(called: Mapping[int, Sequence[Place]], first: int = 1) -> list[Habit]:
    """Lines of the same operation that members are at whenever others are at another one, and at no
    other time; the first one ``first``.
    """
    (member, usual), *others = sorted(called.items())
    found: dict[Place, dict[Place, list[int]]] = {}
    times: Counter[Place] = Counter(usual)
    for other, course in others:
        both = min(len(usual), len(course))
        one, two = Counter(usual[:both]), Counter(course[:both])
        for (ours, theirs), count in Counter(zip(usual, course, strict=False)).items():
            constant = count == one[ours] == two[theirs]
            if ours != theirs and ours[0] == theirs[0] and constant and count >= OFTEN:
                found.setdefault(ours, {}).setdefault(theirs, []).append(other)
    habits = []
    for ours, lines in found.items():
        elsewhere = {other for of in lines.values() for other in of}
        same = (member, *(o for o, course in others if o not in elsewhere and ours in {*course}))
        rows = ((ours, same), *((theirs, tuple(of)) for theirs, of in lines.items()))
        habits.append(Habit(usual.index(ours) + first, times[ours], rows))
    return sorted(habits, key=lambda one: one.first)


def called_from(calls: Mapping[int, Call], places: Mapping[int, Place]) -> dict[int, Place]:
    """Where calls were made, by their numbers: of those of one line of a helper's the nearest
    caller's line at which their callers are not the same.
    """
    chains: dict[Place, dict[int, Stack]] = {}
    for index, call in calls.items():
        chains.setdefault(places[index], {})[index] = callers_of(call)
    found = {**places}
    for (op, _), of in chains.items():
        columns = itertools.takewhile(all, itertools.zip_longest(*of.values()))
        depth = next((at for at, here in enumerate(columns) if len({*here}) > 1), None)
        if depth is not None:
            found.update((index, (op, frames[depth])) for index, frames in of.items())
    return found


def _shift(
    evidence: Evidence, stream: Stream, called: Mapping[int, Sequence[Place]], size: int | None
) -> Shift[int, Place] | None:
    found = first_shift(called, size, kind=op_of)
    if found is not None and found.how == SWAPPED and threads(evidence, stream):
        return None  # the order of two threads is by chance
    return found


def aligned(courses: Mapping[int, Course]) -> tuple[int, Mapping[int, Sequence[Call]]]:
    """The first number that all still have, and the calls from it on of those without a gap."""
    first = max((course[0][0] for course in courses.values() if course), default=1)
    found: dict[int, Sequence[Call]] = {}
    for process, course in courses.items():
        kept = [one for one in course if one[0] >= first]
        if all(number == at for at, (number, _) in enumerate(kept, first)):
            found[process] = [call for _, call in kept]
    return first, found


def _kept(evidence: Evidence) -> Iterator[tuple[Stream, Mapping[int, Course]]]:
    """The courses that came with states: of each that differs one was requested."""
    sample = evidence.sample
    for stream in dict.fromkeys(stream for _, stream in sample.history):
        members = {process for process, of in sample.courses if of == stream}
        members |= {process for process, of in sample.history if of == stream}
        known = ((process, evidence.course(process, stream)) for process in sorted(members))
        yield stream, {process: course for process, course in known if course is not None}


def threads(evidence: Evidence, stream: Stream) -> bool:
    """Whether several threads of a process call into a stream."""
    members = evidence.sample.streams.get(stream, {}).values()
    found = together((op.process, op.thread) for kept in members for op in kept)
    return any(len({*of}) > 1 for of in found.values())
