"""The calls of each rank in each group, as numbers that mean the same in two traces.

Collectives and messages that the program or what it calls hands to a backend; an operation made of
several (``all_gather_object``) is the calls that it makes. Groups are the same by what they are
described as and their members, since names change.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import polars as pl

from disttrace_viewer.analysis.difference.align import Side
from disttrace_viewer.analysis.difference.tokens import Callers, Seen, tokens
from disttrace_viewer.trace.model import Call, Group, Trace
from disttrace_viewer.trace.operation import GROUPED

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

    trace: Trace

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
    def seen(self) -> list[Seen]:
        """Each call of the trace, by its number."""
        counts = dict(self.trace.operations.group_by("call").len().iter_rows())
        calls = map(self.trace.call, range(self.trace.calls.height))
        return [
            Seen(
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


def sides(a: Streams, b: Streams) -> tuple[Mapping[Key, Side], Mapping[Key, Side]]:
    """The streams of two traces, as numbers from one vocabulary."""
    numbers: dict[Hashable, int] = {}
    found = []
    for streams, words in zip((a, b), tokens(a.seen, b.seen), strict=True):
        token = [numbers.setdefault(word, len(numbers)) for word in words]
        values = [numbers.setdefault(one.arguments, len(numbers)) for one in streams.seen]
        found.append(
            {
                key: Side([token[c] for c in one.calls], [values[c] for c in one.calls])
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
    # A description of an object's address is of that run alone.
    desc = group.desc if group.desc and "0x" not in group.desc else None
    return desc, group.ranks
