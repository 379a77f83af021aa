"""Two runs side by side: ``disttrace.diff``."""

from __future__ import annotations

import itertools
import sys
from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from functools import cached_property
from statistics import median, mode
from typing import Any, TypeAlias, TypeVar

import polars as pl

from disttrace_viewer.analysis import align
from disttrace_viewer.analysis.align import AlignedSide, medians_if_slower
from disttrace_viewer.analysis.streams import Key, Stream, Streams, sides
from disttrace_viewer.api.reading import Paths
from disttrace_viewer.api.trace import Trace, load
from disttrace_viewer.trace.model import Call
from disttrace_viewer.trace.values import asdict, dataclass
from disttrace_viewer.views.terminal.plan import parse_ranks
from disttrace_viewer.wording import differences, sentences
from disttrace_viewer.wording.differences import DifferenceFacts, ShownCall, Slower

T = TypeVar("T")
_Kinds: TypeAlias = "dict[Hashable, list[int]]"
_Sides: TypeAlias = "tuple[AlignedSide, AlignedSide]"
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


class Diff:
    """What differs between two runs: ``print`` it, or ask ``.alike`` and ``.differences``."""

    def __init__(self, a: Trace, b: Trace, ranks: Collection[int] | None = None) -> None:
        """``disttrace.diff`` makes one."""
        self._traces = a, b
        self._streams = Streams(a.model), Streams(b.model)
        self._ranks = ranks

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
        differing: dict[DifferenceFacts, list[tuple[int, Slower | None]]] = defaultdict(list)
        a, b = (
            {key: side for key, side in run.items() if self._ranks is None or key[0] in self._ranks}
            for run in sides(*self._streams)
        )
        for key in (one for one in a if one in b):
            both = a[key], b[key]
            for one in align.compare(*both):
                differing[self._told(key, both, one)].append((key[0], None))
            for what, slower in self._slower(key, both):
                differing[what].append((key[0], slower))
        found = [*(_difference(what, who) for what, who in differing.items()), *self._alone(a, b)]
        order = (*align.KINDS, *ALONE)
        gained = {one: (one.b_ns or 0) - (one.a_ns or 0) for one in found}
        return tuple(sorted(found, key=lambda one: (order.index(one.kind), -gained[one])))

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

    # -- one pair of streams ------------------------------------------------------------------

    def _told(self, key: Key, both: _Sides, one: align.StreamDifference) -> DifferenceFacts:
        calls = _pair(lambda run: self._call(run, key, one.places[run]))
        nth = max(place or 0 for place in one.places) + 1
        return DifferenceFacts(
            one.kind,
            self._group(key),
            _pair(lambda run: self._shown(run, calls[run], calls[1 - run])),
            one.counts,
            one.steps,
            _pair(lambda run: self._bytes(run, key, both[run], one.places[run]))
            if any(one.steps)
            else (None, None),
            nth if one.kind == align.FIRST else None,
        )

    def _call(self, run: int, key: Key, place: int | None) -> Call | None:
        calls = self._streams[run].of[key].calls
        return None if place is None else self._traces[run].model.call(calls[place])

    def _shown(self, run: int, one: Call | None, other: Call | None) -> ShownCall | None:
        if one is None:
            return None
        model, streams = self._traces[run].model, self._streams[run]
        group = None if one.group is None else model.groups[one.group]
        caller = streams.callers.telling(streams.seen[one.index])
        return differences.shown(one, other, group, caller)

    def _group(self, key: Key) -> str:
        model = self._traces[0].model
        group = self._streams[0].of[key].group
        return sentences.group(None if group is None else model.groups[group])

    def _bytes(self, run: int, key: Key, side: AlignedSide, place: int | None) -> int | None:
        if place is None:
            return None
        token, model = side.tokens[place], self._traces[run].model
        made = zip(self._streams[run].of[key].calls, side.tokens, strict=True)
        calls = (call for call, its in made if its == token)
        return sum(model.call(call).bytes or 0 for call in calls)

    def _slower(self, key: Key, both: _Sides) -> Iterator[tuple[DifferenceFacts, Slower]]:
        """The calls of a rank in a group that take longer in the second run."""
        of_a, of_b = (streams.of[key] for streams in self._streams)
        before, after = _pair(lambda run: self._places(run, key, both[run]))
        for token in filter(before.__contains__, after):
            pairs = [*_pairs(before[token], after[token])]
            times = ((_times(of_a, one), _times(of_b, other)) for one, other in pairs)
            slower = [
                (medians[0] - medians[1], *medians, *pair)
                for pair, taken in zip(pairs, times, strict=True)
                if (medians := medians_if_slower(*taken)) is not None
            ]
            if not slower:
                continue
            _, first, second, *places = min(slower)
            calls = [self._call(run, key, at[0]) for run, at in enumerate(places)]
            a, b = (self._shown(run, call, call) for run, call in enumerate(calls))
            waits, by = self._waits(of_b, [of_b.numbers[i] for i in places[1]])
            differing = DifferenceFacts(align.SLOWER, self._group(key), (a, b))
            yield differing, Slower(first, second, waits, by)

    def _places(self, run: int, key: Key, side: AlignedSide) -> dict[int, _Kinds]:
        """Where each call stands, by its token and its dtypes."""
        model, stream = self._traces[run].model, self._streams[run].of[key]
        dtypes = {call: model.call(call).signature.dtypes for call in {*stream.calls}}
        found: dict[int, _Kinds] = defaultdict(lambda: defaultdict(list))
        for place, (token, call) in enumerate(zip(side.tokens, stream.calls, strict=True)):
            found[token][dtypes[call]].append(place)
        return found

    def _waits(self, stream: Stream, numbers: Sequence[int]) -> tuple[int, int | None]:
        """The median of what operations of the second run wait (ns), and mostly for which rank."""
        trace = self._traces[1]
        rows = trace.waits.parts.filter(
            (pl.col("process") == stream.process) & pl.col("number").is_in(list(numbers))
        )
        by = rows["by"].drop_nulls().to_list()
        if not by:
            return 0, None
        return round(median(rows["wait_ns"])), trace.model.processes[mode(by)].rank

    def _alone(self, *both: Mapping[Key, AlignedSide]) -> Iterator[Difference]:
        """Ranks and groups of one run alone."""
        ranks = [{rank for rank, _ in one} for one in both]
        for i, name in enumerate("AB"):
            if only := tuple(sorted(ranks[i] - ranks[1 - i])):
                summary = f"Only {name} has {sentences.ranks(only)}."
                yield Difference(kind="ranks", ranks=only, group="", summary=summary)
            groups: dict[str, list[int]] = defaultdict(list)
            for rank, group in both[i]:
                if (rank, group) not in both[1 - i] and rank in ranks[1 - i]:
                    index = self._streams[i].of[rank, group].group
                    model = self._traces[i].model
                    where = sentences.group(None if index is None else model.groups[index])
                    groups[where].append(rank)
            for where, who in groups.items():
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


def _pair(of: Callable[[int], T]) -> tuple[T, T]:
    """Of both runs."""
    return of(0), of(1)


def _pairs(a: _Kinds, b: _Kinds) -> Iterator[tuple[list[int], list[int]]]:
    """What of one line is to be compared: the calls that one of its functions makes of each kind
    (``all_gather_object`` tells sizes first); all of them where the kinds differ.
    """
    if a.keys() == b.keys():
        yield from ((places, b[dtypes]) for dtypes, places in a.items())
    else:
        yield sorted(itertools.chain(*a.values())), sorted(itertools.chain(*b.values()))


def _times(stream: Stream, places: Sequence[int]) -> list[int]:
    return [ns for i in places if (ns := stream.durations[i]) is not None]
