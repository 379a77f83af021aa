"""The calls of each rank in each group, as numbers that mean the same in two traces.

Collectives and messages that the program or what it calls hands to a backend; an operation made of
several (``all_gather_object``) is the calls that it makes. Groups are the same by what they are
described as and their members, since names change. A call is known by its operation and the lines
of the program that led to it. Lines move, so those of a function in one run are matched with those
of the same function in the other by what is called from them; sizes may change, and only decide
where several lines fit.
"""

from __future__ import annotations

import itertools
import os
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import TypeAlias

import polars as pl

from disttrace.journal.code_files import in_package, is_program
from disttrace_viewer.analysis.align import AlignedSide
from disttrace_viewer.analysis.sample import innermost
from disttrace_viewer.trace.model import Call, Group, JobTrace
from disttrace_viewer.trace.operation import GROUPED
from disttrace_viewer.trace.process import Frame, Stack
from disttrace_viewer.trace.values import dataclass, field

Function = tuple[str, str]
"""File, without the folder in which the program lies, and function."""
Token = tuple[Hashable, ...]
"""Operation and path: equal for the same call of both runs."""

_MOST_PAIRS = 1_000_000
"""Beyond (a thousand lines of one function that communicate) lines of one number are the same."""
_SAME_ARGUMENTS, _SAME_LABELS, _SAME_COUNT, _MATCH = 4.0, 2.0, 1.0, 8.0


@dataclass(frozen=True, slots=True)
class RunCall:
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

    def __init__(self, calls: Iterable[RunCall]) -> None:
        self._next: dict[Stack, set[Frame]] = {}
        self._below: dict[tuple[int, Stack], set[Frame]] = {}
        for process, frames in {(one.process, one.frames) for one in calls if one.count}:
            for length in range(1, len(frames)):
                self._next.setdefault(frames[:length], set()).add(frames[length])
                below = self._below.setdefault((process, frames[length:]), set())
                below.add(frames[length - 1])

    def telling(self, one: RunCall) -> Frame | None:
        """The line outside that tells a call from others of the same innermost line, or that leads
        its rank to this call alone, as that of a helper's only use; None for a line that runs much.
        """
        frames = one.frames
        for length in range(1, len(frames)):
            if len(self._next.get(frames[:length], ())) > 1:
                return frames[length]
        return frames[1] if len(self._below.get((one.process, frames[1:]), ())) == 1 else None


def tokens(a: Sequence[RunCall], b: Sequence[RunCall]) -> tuple[list[Token], list[Token]]:
    """A token for each call of both runs."""
    lines = [_lines(a), _lines(b)]
    names: dict[tuple[Function, int], int] = {}
    for function, there in lines[1].items():
        pairs = _matched(lines[0].get(function, {}), there)
        # No line of A bears the number that a line of B gets which has none like it there.
        names |= {(function, line): pairs.get(line, -line) for line in there}
    return [_token(one, {}) for one in a], [_token(one, names) for one in b]


def _token(seen: RunCall, names: Mapping[tuple[Function, int], int]) -> Token:
    path = ((function_of(f), f.line) for f in seen.frames)
    return seen.op, *((function, names.get((function, line), line)) for function, line in path)


def _lines(calls: Iterable[RunCall]) -> dict[Function, dict[int, _Line]]:
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
    """Lines of ``b`` with their lines of ``a``: first those that are most like, of equals the
    nearest. (difflib was tried: of 100 drawn pairs it judged two worse.)"""
    ours, theirs = sorted(a), sorted(b)
    if ours == theirs and all(a[line].labels == b[line].labels for line in ours):
        return {line: line for line in ours}
    if len(ours) * len(theirs) > _MOST_PAIRS:
        return {line: line for line in theirs if line in a}
    places = itertools.product(range(len(ours)), range(len(theirs)))
    rated = [(-_likeness(a[ours[i]], b[theirs[j]]), abs(i - j), i, j) for i, j in places]
    found: dict[int, int] = {}
    for likeness, _, i, j in sorted(rated):
        if likeness and theirs[j] not in found and ours[i] not in found.values():
            found[theirs[j]] = ours[i]
    return found


def _likeness(a: _Line, b: _Line) -> float:
    """Zero where the lines call nothing in common."""
    if not a.labels & b.labels:
        return 0.0
    return (
        _MATCH
        + _SAME_ARGUMENTS * bool(a.arguments & b.arguments)
        + _SAME_LABELS * (a.labels == b.labels)
        + _SAME_COUNT * (a.count == b.count)
    )


Key: TypeAlias = "tuple[int, Hashable]"
"""Rank, and what its group is known by."""


@dataclass(frozen=True, slots=True)
class Stream:
    """What one rank did in one group, by begin."""

    process: int
    group: int | None
    calls: list[int]
    numbers: list[int]
    """Of the operations in their process."""
    durations: list[int | None]
    """Nanoseconds; None of what never ended."""


@dataclass(frozen=True)
class Streams:
    """The streams of a trace."""

    trace: JobTrace

    @cached_property
    def of(self) -> Mapping[Key, Stream]:
        """By rank and group. Of a rank that was started anew its last process counts."""
        calls = self.trace.calls.lazy().with_row_index("call")
        calls = calls.filter(pl.col("kind").is_in(GROUPED)).select("call", "group")
        rows = (
            self.trace.operations.lazy()
            .filter(~pl.col("refused").fill_null(value=False))
            .filter(pl.col("process").is_in(sorted(self._processes)))
            .join(calls, on="call", maintain_order="left")
            .select("process", "group", "call", "number", (pl.col("end_ns") - pl.col("begin_ns")))
            .group_by("process", "group", maintain_order=True)
            .all()
            .collect()
        )
        found = {}
        for process, group, *columns in rows.iter_rows():
            key = self._processes[process], self._groups.get(group, (None, 0))
            found[key] = Stream(process, group, *columns)
        return dict(sorted(found.items(), key=lambda one: one[0][0]))

    @cached_property
    def seen(self) -> list[RunCall]:
        """Each call of the trace, by its number."""
        counts = dict(self.trace.operations.group_by("call").len().iter_rows())
        calls = map(self.trace.call, range(self.trace.calls.height))
        return [
            RunCall(
                c.op,
                self._groups.get(c.group),
                c.stack,
                arguments(c),
                counts.get(c.index, 0),
                c.process,
            )
            for c in calls
        ]

    @cached_property
    def callers(self) -> Callers:
        """Who calls the functions that call."""
        return Callers(self.seen)

    @cached_property
    def _processes(self) -> Mapping[int, int]:
        """Ranks by process."""
        active = self.trace.operations.group_by("process").len()
        count = dict(active.iter_rows())
        last: dict[int, int] = {}
        for p in sorted(self.trace.processes, key=lambda p: (p.attempt or 0, p.start_ns)):
            if p.rank is not None and not p.is_agent and count.get(p.index):
                last[p.rank] = p.index
        return {process: rank for rank, process in last.items()}

    @cached_property
    def _groups(self) -> Mapping[int | None, Hashable]:
        """What each group is known by, and which one of those it is."""
        met: Counter[Hashable] = Counter()
        found: dict[int | None, Hashable] = {}
        for group in self.trace.groups:
            name = _name(group)
            found[group.index] = name, met[name]
            met[name] += 1
        return found


def sides(a: Streams, b: Streams) -> tuple[Mapping[Key, AlignedSide], Mapping[Key, AlignedSide]]:
    """The streams of two traces, as numbers from one vocabulary."""
    numbers: dict[Hashable, int] = {}
    found = []
    for streams, words in zip((a, b), tokens(a.seen, b.seen), strict=True):
        token = [numbers.setdefault(word, len(numbers)) for word in words]
        values = [numbers.setdefault(one.arguments, len(numbers)) for one in streams.seen]
        found.append(
            {
                key: AlignedSide([token[c] for c in one.calls], [values[c] for c in one.calls])
                for key, one in streams.of.items()
            }
        )
    return found[0], found[1]


def arguments(call: Call) -> Hashable:
    """What a call hands over, beside the group."""
    shown = call.signature
    size = shown.shapes if shown.shapes is not None else shown.bytes
    return "with", size, shown.dtypes, shown.reduce_op, shown.root, shown.peer, shown.tag


def _name(group: Group) -> Hashable:
    if group.default:
        return "default"
    return group.described, group.ranks
