"""Two runs side by side: ``disttrace.diff``."""

from __future__ import annotations

import itertools
import sys
from collections import defaultdict
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from functools import cached_property
from statistics import median, mode
from typing import Any, NamedTuple, TypeAlias

import polars as pl

from disttrace_viewer.analysis import align
from disttrace_viewer.analysis.align import AlignedSide, medians_if_slower
from disttrace_viewer.analysis.streams import Key, Stream, Streams, sides
from disttrace_viewer.api.reading import Paths
from disttrace_viewer.api.trace import Trace, load
from disttrace_viewer.trace.model import Call
from disttrace_viewer.trace.values import asdict, dataclass, together
from disttrace_viewer.views.terminal.plan import parse_ranks
from disttrace_viewer.wording import differences, sentences
from disttrace_viewer.wording.differences import DifferenceFacts, ShownCall, Slower

_Kinds: TypeAlias = "dict[Hashable, list[int]]"
ALONE = ("groups", "ranks")
"""Kinds of what only one run has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One thing in which two runs differ, for all ranks of which the same is true."""

    kind: str
    """``first_divergence``, ``vanished``, ``rarer``, ``appeared``, ``more_often``, ``changed``,
    ``slower``, ``steps`` or ``order``; ``ranks`` and ``groups`` for what only one run has."""
    ranks: tuple[int, ...]
    group: str
    op: str | None = None
    a: str | None = None
    """``train.py:20`` of the first run, or ``helpers.py:5 from train.py:20`` where a line
    outside is more telling; None where it has no such call."""
    b: str | None = None
    count_a: int | None = None
    count_b: int | None = None
    a_ns: int | None = None
    """Of ``slower``: medians of the first rank."""
    b_ns: int | None = None
    summary: str


class _ComparedRun(NamedTuple):
    """One run, and what its ranks do in their groups."""

    trace: Trace
    streams: Streams
    sides: Mapping[Key, AlignedSide]

    def call(self, key: Key, place: int) -> Call:
        return self.streams.trace.call(self.streams.of[key].calls[place])

    def shown(self, one: Call | None, other: Call | None) -> ShownCall | None:
        if one is None:
            return None
        caller = self.streams.callers.telling(self.streams.seen[one.index])
        return differences.shown(one, other, self.streams.trace.group_of(one), caller)

    def group(self, key: Key) -> str:
        group = self.streams.of[key].group
        return sentences.group(None if group is None else self.streams.trace.groups[group])

    def places(self, key: Key) -> dict[int, _Kinds]:
        """Where each call stands, by its token and its dtypes."""
        found: dict[int, _Kinds] = defaultdict(lambda: defaultdict(list))
        for place, token in enumerate(self.sides[key].tokens):
            found[token][self.call(key, place).dtypes].append(place)
        return found

    def bytes(self, key: Key, place: int | None) -> int | None:
        """Of all calls that are like that one."""
        if place is None:
            return None
        alike = self.places(key)[self.sides[key].tokens[place]].values()
        return sum(self.call(key, one).bytes or 0 for one in itertools.chain(*alike))

    def times(self, key: Key, places: Sequence[int]) -> list[int]:
        durations = self.streams.of[key].durations
        return [ns for place in places if (ns := durations[place]) is not None]


class Diff:
    """What differs between two runs: ``print`` it, or ask ``.alike`` and ``.differences``."""

    def __init__(self, a: Trace, b: Trace, ranks: Collection[int] | None = None) -> None:
        """``disttrace.diff`` makes one."""
        self._traces, self._ranks = (a, b), ranks

    @property
    def alike(self) -> bool:
        """Whether nothing differs."""
        return not self.differences

    @cached_property
    def incomplete(self) -> tuple[str, ...]:
        """What of the two runs could not be compared, since it is not in the journals."""
        found = []
        for name, trace in zip("AB", self._traces, strict=True):
            for process in trace.model.processes:
                found += [f"{name}, {process.label}: {loss}" for loss in process.losses]
            found += [f"{name}: {problem}" for problem in trace.problems]
        return tuple(dict.fromkeys(found))

    @cached_property
    def differences(self) -> tuple[Difference, ...]:
        """All of them, the first divergence of each group first."""
        streams = Streams(self._traces[0].model), Streams(self._traces[1].model)
        a, b = (
            _ComparedRun(
                trace, of, {key: side for key, side in side_of.items() if self._wanted(key[0])}
            )
            for trace, of, side_of in zip(self._traces, streams, sides(*streams), strict=True)
        )
        differing: dict[DifferenceFacts, list[tuple[int, Slower | None]]] = defaultdict(list)
        for key in (one for one in a.sides if one in b.sides):
            for one in align.compare(a.sides[key], b.sides[key]):
                differing[_facts(a, b, key, one)].append((key[0], None))
            for what, slower in _slower(a, b, key):
                differing[what].append((key[0], slower))
        found = [_difference(what, who) for what, who in differing.items()]
        found += [*_alone("A", a, b), *_alone("B", b, a)]
        order = (*align.KINDS, *ALONE)
        gained = {one: (one.b_ns or 0) - (one.a_ns or 0) for one in found}
        return tuple(sorted(found, key=lambda one: (order.index(one.kind), -gained[one])))

    def _wanted(self, rank: int) -> bool:
        return self._ranks is None or rank in self._ranks

    def to_dict(self) -> dict[str, Any]:
        """The object of ``disttrace diff --json``."""
        return {
            "format": 1,
            "alike": self.alike,
            "a": list(self._traces[0].jobs),
            "b": list(self._traces[1].jobs),
            "differences": [asdict(one) for one in self.differences],
            "incomplete": list(self.incomplete),
        }

    def print(self) -> None:
        """One line per difference on standard output, as ``disttrace diff`` shows them."""
        sys.stdout.write(f"{self}\n")

    def __str__(self) -> str:
        lines = [one.summary for one in self.differences]
        if not lines:
            lines.append("Both runs communicate alike.")
        return "\n".join([*lines, *(f"Incomplete: {one}" for one in self.incomplete)])

    def __repr__(self) -> str:
        return f"<disttrace.Diff: {len(self.differences)} differences>"


def _facts(
    a: _ComparedRun, b: _ComparedRun, key: Key, one: align.StreamDifference
) -> DifferenceFacts:
    there, here = one.places
    calls = (
        None if there is None else a.call(key, there),
        None if here is None else b.call(key, here),
    )
    return DifferenceFacts(
        one.kind,
        a.group(key),
        (a.shown(*calls), b.shown(*calls[::-1])),
        one.counts,
        one.steps,
        (a.bytes(key, there), b.bytes(key, here)) if any(one.steps) else (None, None),
        max(there or 0, here or 0) + 1 if one.kind == align.FIRST else None,
    )


def _slower(a: _ComparedRun, b: _ComparedRun, key: Key) -> Iterator[tuple[DifferenceFacts, Slower]]:
    """The calls of a rank in a group that take longer in the second run."""
    before, after = a.places(key), b.places(key)
    for token in filter(before.__contains__, after):
        slower = [
            (medians[0] - medians[1], *medians, there, here)
            for there, here in _pairs(before[token], after[token])
            if (medians := medians_if_slower(a.times(key, there), b.times(key, here))) is not None
        ]
        if not slower:
            continue
        _, first, second, there, here = min(slower)
        calls = a.call(key, there[0]), b.call(key, here[0])
        shown = a.shown(calls[0], calls[0]), b.shown(calls[1], calls[1])
        differing = DifferenceFacts(align.SLOWER, a.group(key), shown)
        yield differing, Slower(first, second, *_waits(b, b.streams.of[key], here))


def _waits(run: _ComparedRun, stream: Stream, places: Sequence[int]) -> tuple[int, int | None]:
    """The median of what operations wait (ns), and mostly for which rank."""
    numbers = [stream.numbers[place] for place in places]
    rows = run.trace.waits.parts.filter(
        (pl.col("process") == stream.process) & pl.col("number").is_in(numbers)
    )
    by = rows["by"].drop_nulls().to_list()
    if not by:
        return 0, None
    return round(median(rows["wait_ns"])), run.trace.model.processes[mode(by)].rank


def _alone(name: str, run: _ComparedRun, other: _ComparedRun) -> Iterator[Difference]:
    """Ranks and groups of one run alone."""
    ranks, others = ({rank for rank, _ in one.sides} for one in (run, other))
    if only := tuple(sorted(ranks - others)):
        summary = f"Only {name} has {sentences.ranks(only)}."
        yield Difference(kind="ranks", ranks=only, group="", summary=summary)
    keys = [key for key in run.sides if key not in other.sides and key[0] in others]
    for where, who in together((run.group(key), key[0]) for key in keys).items():
        summary = f"Only {name} has calls of {sentences.ranks(who)} in {where}."
        yield Difference(kind="groups", ranks=tuple(who), group=where, summary=summary)


def diff(
    a: Paths,
    b: Paths,
    *,
    ranks: str | None = None,
    jobs: Sequence[str | None] = (None, None),
) -> Diff:
    """What the ranks of run ``b`` do otherwise than those of run ``a``. ``ranks`` (``0,3-5``)
    chooses some; ``jobs``: the job of each folder, as for ``load``.

    Raises:
        ViewerError: when there are no journals in one of them, or no such job.
    """
    chosen = None if ranks is None else parse_ranks(ranks)
    return Diff(load(a, jobs[0]), load(b, jobs[1]), chosen)


def _difference(differing: DifferenceFacts, who: Sequence[tuple[int, Slower | None]]) -> Difference:
    slower = max((s for _, s in who if s is not None), key=lambda s: s.b_ns - s.a_ns, default=None)
    ranks = tuple(sorted({rank for rank, _ in who}))
    a, b = differing.calls
    shown = b or a
    return Difference(
        kind=differing.kind,
        ranks=ranks,
        group=differing.group,
        op=None if shown is None else shown.op,
        a=None if a is None else a.place,
        b=None if b is None else b.place,
        count_a=differing.counts[0],
        count_b=differing.counts[1],
        a_ns=None if slower is None else slower.a_ns,
        b_ns=None if slower is None else slower.b_ns,
        summary=differences.sentence(differing, ranks, slower),
    )


def _pairs(a: _Kinds, b: _Kinds) -> Iterator[tuple[list[int], list[int]]]:
    """What of one line is to be compared: the calls that one of its functions makes of each kind
    (``all_gather_object`` tells sizes first); all of them where the kinds differ.
    """
    if a.keys() == b.keys():
        yield from ((places, b[dtypes]) for dtypes, places in a.items())
    else:
        yield sorted(itertools.chain(*a.values())), sorted(itertools.chain(*b.values()))
