"""The steps of a sequence of calls: where its loop begins anew, and which steps are alike.

A training loop repeats itself, with now and then a step that does more. Cut at the call that opens
the loop, a million calls are a handful of distinct steps.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import groupby

Step = tuple[int, ...]

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
    """The sequence, cut before each call that opens a step; what stands before the first one is a
    step of its own.
    """
    cuts = [i for i, token in enumerate(sequence) if token == first and i]
    return [tuple(sequence[i:j]) for i, j in zip([0, *cuts], [*cuts, len(sequence)], strict=True)]


def runs(found: Iterable[Step]) -> list[tuple[Step, int]]:
    """Steps that follow each other and are alike, with how many they are."""
    return [(step, sum(1 for _ in same)) for step, same in groupby(found)]


def _cost(sequence: Sequence[int], first: int) -> int:
    found = runs(steps(sequence, first))
    return sum(len(step) for step in {step for step, _ in found}) + len(found)
