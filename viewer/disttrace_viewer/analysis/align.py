"""Two sequences of calls, aligned: what is gone, what is new, what changed, what moved.

A training loop repeats itself, with now and then a step that does more. Cut at the call that opens
the loop, a million calls are a handful of distinct steps.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from difflib import SequenceMatcher
from itertools import groupby

from disttrace_viewer.trace.values import dataclass, together

Step = tuple[int, ...]
Counts = tuple[Counter[int], Counter[int]]

_LOOKED_AT = 20_000
"""Calls by which the opening one is chosen."""
_CANDIDATES = 32


def opening(a: Sequence[int], b: Sequence[int]) -> int | None:
    """The call at which cutting both sequences leaves the least to tell: the lengths of the
    distinct steps and how often one follows another one. None where nothing comes twice in both.
    """
    parts = [list(one[:_LOOKED_AT]) for one in (a, b)]
    counts = [Counter(part) for part in parts]
    often = [t for t in dict.fromkeys(parts[0]) if min(c[t] for c in counts) > 1]
    often.sort(key=lambda token: -counts[0][token])
    kept = set(often[:_CANDIDATES])
    candidates = [token for token in dict.fromkeys(parts[0]) if token in kept]
    return min(candidates, key=lambda token: sum(_cost(p, token) for p in parts), default=None)


def steps(sequence: Sequence[int], first: int | None) -> list[Step]:
    """The sequence, cut before each call that opens a step; the part before is a step too."""
    cuts = [i for i, token in enumerate(sequence) if token == first and i]
    return [tuple(sequence[i:j]) for i, j in zip([0, *cuts], [*cuts, len(sequence)], strict=True)]


def runs(found: Iterable[Step]) -> list[tuple[Step, int]]:
    """Steps that follow each other and are alike, with how many they are."""
    return [(step, sum(1 for _ in same)) for step, same in groupby(found)]


def _cost(sequence: Sequence[int], first: int) -> int:
    found = runs(steps(sequence, first))
    return sum(len(step) for step in {step for step, _ in found}) + len(found)


FIRST, VANISHED, RARER = "first_divergence", "vanished", "rarer"
APPEARED, OFTENER = "appeared", "more_often"
CHANGED, SLOWER, STEPS, ORDER = "changed", "slower", "steps", "order"
KINDS = (FIRST, VANISHED, RARER, APPEARED, OFTENER, CHANGED, SLOWER, STEPS, ORDER)
"""In the order in which they are reported."""

_LONGEST = 3_000
"""Calls of a step that are aligned one by one; of longer ones only the first divergence counts."""
_USUAL = 0.1
"""The part of a side's steps from which on a kind of step is aligned with the other side's."""
_VARYING = 8
"""More sizes than this at one call on both sides are data, and no change of the program."""


@dataclass(frozen=True, slots=True)
class AlignedSide:
    """The calls of one rank in one group: the same numbers on both sides for the same things."""

    tokens: Sequence[int]
    arguments: Sequence[int]

    def __len__(self) -> int:
        return len(self.tokens)


@dataclass(frozen=True, slots=True)
class StreamDifference:
    """Two sides differ at these places; None where a side has nothing."""

    kind: str
    places: tuple[int | None, int | None]
    counts: tuple[int, int]
    """How many calls it is about; for ``steps`` how many steps there are."""
    steps: tuple[int, int] = (0, 0)


def compare(a: AlignedSide, b: AlignedSide) -> list[StreamDifference]:
    """All differences, in the order of ``KINDS``."""
    first = _first(a, b)
    if first is None:
        return []
    head = opening(a.tokens, b.tokens)
    cut = steps(a.tokens, head), steps(b.tokens, head)
    number = sum(s[:1] == (head,) for s in cut[0]), sum(s[:1] == (head,) for s in cut[1])
    counts = Counter(a.tokens), Counter(b.tokens)
    unlike = {t for t in counts[0] | counts[1] if _differs(counts[0][t], counts[1][t], number)}
    found = [StreamDifference(FIRST, first, (1, 1)), *_counted(a, b, unlike, counts, number)]
    found += _changed(a, b, unlike)
    if number[0] != number[1] and head not in unlike:
        places = a.tokens.index(head), b.tokens.index(head)
        found.append(StreamDifference(STEPS, places, number))
    found += _moved(a, b, unlike, cut)
    return sorted(found, key=lambda one: KINDS.index(one.kind))


def _first(a: AlignedSide, b: AlignedSide) -> tuple[int | None, int | None] | None:
    """Where they part; None on a side that has ended there. None where they do not."""
    both = min(len(a), len(b))
    for of_a, of_b in ((a.tokens, b.tokens), (a.arguments, b.arguments)):
        if of_a[:both] != of_b[:both]:
            both = next(i for i in range(both) if of_a[i] != of_b[i])
    if both == len(a) == len(b):
        return None
    return both if both < len(a) else None, both if both < len(b) else None


def _differs(a: int, b: int, number: tuple[int, int]) -> bool:
    """Whether a call comes a different number of times, for as many steps as each side has."""
    if a == b:
        return False
    if number[0] == number[1] or not a or not b or not min(number):
        return True
    return abs(a / number[0] - b / number[1]) * min(number) > 1


def _counted(
    a: AlignedSide, b: AlignedSide, unlike: set[int], counts: Counts, number: tuple[int, int]
) -> list[StreamDifference]:
    """Calls that come on one side alone, or more often there."""
    found = []
    for token in sorted(unlike, key=lambda t: (a if counts[0][t] else b).tokens.index(t)):
        of_a, of_b = counts[0][token], counts[1][token]
        less = of_a / max(1, number[0]) > of_b / max(1, number[1])
        gone, fewer = (VANISHED, RARER) if less else (APPEARED, OFTENER)
        kind = fewer if of_a and of_b else gone
        places = _place(a, b, token), _place(b, a, token)
        found.append(StreamDifference(kind, places, (of_a, of_b), number))
    return found


def _place(side: AlignedSide, other: AlignedSide, token: int) -> int | None:
    """Where a side has a call: with arguments that the other has not, if there are such."""
    mine, theirs = (
        {s.arguments[i]: i for i, one in enumerate(s.tokens) if one == token} for s in (side, other)
    )
    if theirs and (own := [place for value, place in mine.items() if value not in theirs]):
        return min(own)
    return side.tokens.index(token) if mine else None


def _changed(a: AlignedSide, b: AlignedSide, unlike: set[int]) -> list[StreamDifference]:
    """Calls whose n-th times have other arguments."""
    if a.arguments == b.arguments:
        return []
    places = [together((token, i) for i, token in enumerate(side.tokens)) for side in (a, b)]
    found = []
    for token, ours in places[0].items():
        theirs = places[1].get(token)
        if theirs is None or token in unlike:
            continue
        kinds = [{s.arguments[i] for i in at} for s, at in ((a, ours), (b, theirs))]
        if kinds[0] == kinds[1] or min(map(len, kinds)) > _VARYING:
            continue
        pairs = together(
            ((a.arguments[i], b.arguments[j]), (i, j))
            for i, j in zip(ours, theirs, strict=False)
            if a.arguments[i] != b.arguments[j]
        )
        most = sorted(pairs.values(), key=len, reverse=True)[:3]
        found += [StreamDifference(CHANGED, of[0], (len(of), len(of))) for of in most]
    return found


def _moved(
    a: AlignedSide, b: AlignedSide, unlike: set[int], cut: tuple[list[Step], list[Step]]
) -> list[StreamDifference]:
    """Calls that both sides have as often, and in another order: within a step, else of steps."""
    left = [[tuple(t for t in step if t not in unlike) for step in one] for one in cut]
    order = [[step for step, _ in runs(s for s in one if s)] for one in left]
    both = min(map(len, order))
    if order[0][:both] == order[1][:both]:
        return []
    # Where a loop begins is a matter of choice, and who comes first is not.
    met = [tuple(dict.fromkeys(token for step in one for token in step)) for one in left]
    if met[0] != met[1]:
        return _order(a, b, _crossed(met[0], [met[1]]))
    often = [Counter(one) for one in left]
    usual = [[s for s, n in one.items() if n >= _USUAL * one.total() and s] for one in often]
    others = [step for step in usual[1] if step not in often[0] and len(step) <= _LONGEST]
    tokens: dict[int, None] = {}
    for step in usual[0]:
        if others and step not in often[1] and len(step) <= _LONGEST:
            tokens |= dict.fromkeys(_crossed(step, others))
    return _order(a, b, tokens)


def _order(a: AlignedSide, b: AlignedSide, tokens: Iterable[int]) -> list[StreamDifference]:
    return [StreamDifference(ORDER, (a.tokens.index(t), b.tokens.index(t)), (1, 1)) for t in tokens]


def _crossed(step: Step, others: Sequence[Step]) -> list[int]:
    """The calls of a step that stand elsewhere in the one that is most like it."""
    matchers = [(SequenceMatcher(None, step, one, autojunk=False), one) for one in others]
    best, other = max(matchers, key=lambda pair: pair[0].ratio())
    gone: Counter[int] = Counter()
    come: Counter[int] = Counter()
    for tag, i, j, k, m in best.get_opcodes():
        if tag != "equal":
            gone.update(step[i:j])
            come.update(other[k:m])
    return list(gone & come)


FEWEST = 8
"""Times of a call on each side below which nothing is reported."""
_OUTER = 0.1
"""The slowest and fastest part of the times that is left out of a run's spread."""
_RATIO, _LEAST_NS = 1.2, 1_000_000


def medians_if_slower(a: Sequence[int], b: Sequence[int]) -> tuple[int, int] | None:
    """The medians (ns) where ``b`` is slower: nine tenths of its times are above nine tenths of
    those of ``a``, and the medians are a fifth and a millisecond apart. The first time of each side
    does not count: what is made then is made once.
    """
    a, b = sorted(a[1:]), sorted(b[1:])
    if min(len(a), len(b)) < FEWEST:
        return None
    before, after = a[len(a) // 2], b[len(b) // 2]
    apart = b[int(len(b) * _OUTER)] > a[-1 - int(len(a) * _OUTER)]
    if apart and after >= before * _RATIO and after - before >= _LEAST_NS:
        return before, after
    return None
