"""What the members of each group called, number by number, and where they are out of step."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from disttrace_viewer.analysis.operation import innermost
from disttrace_viewer.analysis.out_of_step import SWAPPED, Shift, first_shift
from disttrace_viewer.analysis.sample import Course, Stream
from disttrace_viewer.evidence.evidence import Evidence
from disttrace_viewer.trace.model import Call, Frame

Place = tuple[str, Frame | None]
"""Operation and the user's line: behind a framework all of its calls are of one line."""
Shifts = Mapping[Stream, Shift[int, Place]]


def shifts(evidence: Evidence, past: Iterable[tuple[Stream, Mapping[int, Course]]]) -> Shifts:
    """By stream the first place from which on members (processes) are out of step. ``past``: the
    courses of streams whose members called from different lines, where all of them were read.
    """
    found = {}
    for stream, courses in {**dict(_kept(evidence)), **dict(past)}.items():
        shift = _shift(evidence, stream, courses)
        if shift is not None:
            found[stream] = shift
    return found


def _shift(
    evidence: Evidence, stream: Stream, courses: Mapping[int, Course]
) -> Shift[int, Place] | None:
    group = None if stream[0] is None else evidence.trace.groups[stream[0]]
    if group is None or len(courses) < 2:
        return None
    places: dict[int, Place] = {}
    called: dict[int, list[Place]] = {}
    first, together = aligned(courses)
    for process, calls in together.items():
        for index, call in {call.index: call for call in calls}.items():
            places.setdefault(index, place_of(call))
        called[process] = [places[call.index] for call in calls]
    found = first_shift(called, group.size)
    if found is None or (found.how == SWAPPED and _threads(evidence, stream)):
        return None  # the order of two threads is by chance
    return found.later(first - 1)


def aligned(courses: Mapping[int, Course]) -> tuple[int, Mapping[int, Sequence[Call]]]:
    """The calls of each process from the first number on that all still have, and that number;
    without those of which something is missing.
    """
    first = max((course[0][0] for course in courses.values() if course), default=1)
    found: dict[int, Sequence[Call]] = {}
    for process, course in courses.items():
        kept = [one for one in course if one[0] >= first]
        if all(number == at for at, (number, _) in enumerate(kept, first)):
            found[process] = [call for _, call in kept]
    return first, found


def place_of(call: Call) -> Place:
    """What two calls have in common that are one line of the program."""
    return call.op, innermost(call.stack)


def _kept(evidence: Evidence) -> Iterator[tuple[Stream, Mapping[int, Course]]]:
    """The courses that came with states: of each that differs one was asked for."""
    sample = evidence.sample
    for stream in dict.fromkeys(stream for _, stream in sample.history):
        members = {process for process, of in sample.courses if of == stream}
        members |= {process for process, of in sample.history if of == stream}
        known = ((process, evidence.course(process, stream)) for process in sorted(members))
        yield stream, {process: course for process, course in known if course is not None}


def _threads(evidence: Evidence, stream: Stream) -> bool:
    """Whether several threads of a process call into a stream."""
    found: dict[int, set[int | None]] = {}
    for members in evidence.sample.streams.get(stream, {}).values():
        for op in members:
            found.setdefault(op.process, set()).add(op.thread)
    return any(len(threads) > 1 for threads in found.values())
