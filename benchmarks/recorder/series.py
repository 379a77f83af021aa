"""Samples of one figure, a value per round, and the medians that stand for them.

What a tracer adds is the difference to the untraced program *of the same round*: the machine's mood
changes from second to second, and both meet the same one.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

BARE = "bare"

Samples = Sequence[float]
Variants = Mapping[str, Samples]


@dataclass(frozen=True, slots=True)
class Spread:
    """A median and the quartiles around it."""

    low: float
    median: float
    high: float

    @property
    def holds_zero(self) -> bool:
        """Whether the middle half of the samples lies on both sides of nothing."""
        return self.low <= 0 <= self.high


def spread(samples: Samples) -> Spread:
    """Median and quartiles."""
    if len(samples) < 2:
        return Spread(samples[0], samples[0], samples[0])
    low, median, high = statistics.quantiles(samples, n=4, method="inclusive")
    return Spread(low, median, high)


def added(variants: Variants, name: str) -> Spread:
    """What ``name`` adds to the bare program, round by round."""
    pairs = zip(variants[name], variants[BARE], strict=True)
    return spread([traced - bare for traced, bare in pairs])


def relative(variants: Variants, name: str) -> Spread:
    """What ``name`` adds, as a fraction of the bare program, round by round."""
    pairs = zip(variants[name], variants[BARE], strict=True)
    return spread([traced / bare - 1 for traced, bare in pairs])


def ratio(variants: Variants, name: str, against: str) -> float | None:
    """What ``name`` adds, in units of what ``against`` adds; None where that adds nothing."""
    if name not in variants or against not in variants:
        return None
    whole = added(variants, against).median
    return added(variants, name).median / whole if whole > 0 else None
