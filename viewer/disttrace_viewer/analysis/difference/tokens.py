"""What makes a call of one run the same as a call of another one, whose file may have been edited.

A call is known by its operation and the lines of the program that led to it. Lines move, so those
of a function in one run are matched with those of the same function in the other by what is called
from them; sizes may change, and only decide where several lines fit.
"""

from __future__ import annotations

import os
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from disttrace.journal.code_files import in_package, is_program
from disttrace_viewer.analysis.operation import innermost
from disttrace_viewer.trace.process import Frame, Stack

Function = tuple[str, str]
"""File, without the folder in which the program lies, and function."""
Token = tuple[Hashable, ...]
"""Operation and path: equal for the same call of both runs."""

_SAME_ARGUMENTS, _SAME_LABELS, _SAME_COUNT, _SAME_LINE, _MATCH = 4.0, 2.0, 1.0, 0.5, 8.0


@dataclass(frozen=True, slots=True)
class Seen:
    """A call of one run."""

    op: str
    group: Hashable
    stack: Stack
    arguments: Hashable
    count: int
    process: int = 0

    @property
    def frames(self) -> Stack:
        """The program's own frames, innermost first."""
        own = tuple(frame for frame in self.stack if is_program(frame.file))
        if own:
            return own
        nearest = innermost(self.stack)
        return () if nearest is None else (nearest,)


@dataclass(slots=True)
class _Line:
    """What is called from a line."""

    labels: set[Hashable] = field(default_factory=set)
    arguments: set[Hashable] = field(default_factory=set)
    count: int = 0


def function_of(frame: Frame) -> Function:
    """The function of a frame, the same wherever the program lies."""
    return in_package(frame.file) or os.path.basename(frame.file), frame.function


class Callers:
    """From which lines the functions that call are called, in one run."""

    def __init__(self, calls: Iterable[Seen]) -> None:
        self._next: dict[Stack, set[Frame]] = {}
        self._below: dict[tuple[int, Stack], set[Frame]] = {}
        for process, frames in {(one.process, one.frames) for one in calls if one.count}:
            for length in range(1, len(frames)):
                self._next.setdefault(frames[:length], set()).add(frames[length])
                below = self._below.setdefault((process, frames[length:]), set())
                below.add(frames[length - 1])

    def telling(self, one: Seen) -> Frame | None:
        """The line outside that tells a call from others of the same innermost line, or that leads
        its rank to this call alone, as that of a helper's only use; None for a line that runs much.
        """
        frames = one.frames
        for length in range(1, len(frames)):
            if len(self._next.get(frames[:length], ())) > 1:
                return frames[length]
        return frames[1] if len(self._below.get((one.process, frames[1:]), ())) == 1 else None


def tokens(a: Sequence[Seen], b: Sequence[Seen]) -> tuple[list[Token], list[Token]]:
    """A token for each call of both runs."""
    lines = [_lines(a), _lines(b)]
    names: dict[tuple[Function, int], int] = {}
    for function, there in lines[1].items():
        pairs = _matched(lines[0].get(function, {}), there)
        # No line of A bears the number that a line of B gets which has none like it there.
        names |= {(function, line): pairs.get(line, -line) for line in there}
    return [_token(one, {}) for one in a], [_token(one, names) for one in b]


def _token(seen: Seen, names: Mapping[tuple[Function, int], int]) -> Token:
    path = ((function_of(f), f.line) for f in seen.frames)
    return seen.op, *((function, names.get((function, line), line)) for function, line in path)


def _lines(calls: Iterable[Seen]) -> dict[Function, dict[int, _Line]]:
    found: dict[Function, dict[int, _Line]] = {}
    for call in (one for one in calls if one.count):
        called: Hashable = call.op, call.group
        for frame in call.frames:
            line = found.setdefault(function_of(frame), {}).setdefault(frame.line, _Line())
            line.labels.add(called)
            line.arguments.add((call.op, call.arguments))
            line.count += call.count
            called = function_of(frame)
    return found


def _matched(a: Mapping[int, _Line], b: Mapping[int, _Line]) -> dict[int, int]:
    """Lines of ``b`` with their lines of ``a``: in their order where that fits best (Needleman and
    Wunsch), then, of those left over, whatever is called from both with the same arguments.
    """
    ours, theirs = sorted(a), sorted(b)
    if ours == theirs and all(a[line].labels == b[line].labels for line in ours):
        return {line: line for line in ours}
    best = [[0.0] * (len(theirs) + 1) for _ in range(len(ours) + 1)]
    for i, one in enumerate(ours, 1):
        for j, other in enumerate(theirs, 1):
            both = best[i - 1][j - 1] + _likeness(a[one], b[other], one == other)
            best[i][j] = max(both, best[i - 1][j], best[i][j - 1])
    found: dict[int, int] = {}
    i, j = len(ours), len(theirs)
    while i and j:
        if best[i][j] == best[i - 1][j]:
            i -= 1
        elif best[i][j] == best[i][j - 1]:
            j -= 1
        else:
            i, j = i - 1, j - 1
            found[theirs[j]] = ours[i]
    left = [line for line in ours if line not in found.values()]
    for other in theirs:
        alike = (one for one in left if other not in found and _same(a[one], b[other]))
        moved = next(alike, None)
        if moved is not None:
            found[other] = moved
            left.remove(moved)
    return found


def _likeness(a: _Line, b: _Line, same_line: bool) -> float:
    """Zero where the lines call nothing in common."""
    if not a.labels & b.labels:
        return 0.0
    return (
        _MATCH
        + _SAME_ARGUMENTS * bool(a.arguments & b.arguments)
        + _SAME_LABELS * (a.labels == b.labels)
        + _SAME_COUNT * (a.count == b.count)
        + _SAME_LINE * same_line
    )


def _same(a: _Line, b: _Line) -> bool:
    return a.labels == b.labels and a.arguments == b.arguments
