"""What the members of each group called, number by number, and where they are out of step."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence

from disttrace_viewer.analysis.out_of_step import SWAPPED, Shift, first_shift
from disttrace_viewer.analysis.past import Place, callers_of, op_of, place_of
from disttrace_viewer.analysis.sample import Course, together
from disttrace_viewer.evidence.evidence import Evidence
from disttrace_viewer.trace.model import Call, Stream
from disttrace_viewer.trace.process import Stack


def steps(evidence: Evidence) -> dict[Stream, Shift[int, Place]]:
    """By stream the first place from which on members are out of step."""
    shifts = {}
    for stream, courses in _kept(evidence):
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
    return shifts


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
