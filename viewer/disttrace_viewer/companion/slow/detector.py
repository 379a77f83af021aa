"""When a rank that was not late before has come to be: a test over time with few false alarms.

What it bets on is that a rank's delay is, as far as the past can tell, at most an *allowance*. Each
observation multiplies what was won so far by ``1 + BET * y``, with ``y`` the delay beyond the
allowance in units of the usual spread, cut to ``LOWEST`` and ``HIGHEST``; what falls below 1 starts
anew at 1. As long as the bet is lost in the mean, whatever the noise is like, more than A is won at
most once in A observations in the mean: an e-CUSUM (Shin, Ramdas, Rinaldo: E-detectors, a
nonparametric framework for sequential change detection, arXiv 2203.03532). It is Page's CUSUM with
bets in the place of likelihoods, which would have to be those of the noise (Lorden 1971).
"""

from __future__ import annotations

import math

BET = 0.45
LOWEST, HIGHEST = -2.0, 8.0
_NEVER_FALLS_TO_ZERO = 1 + BET * LOWEST > 0
assert _NEVER_FALLS_TO_ZERO


class Detector:
    """Of one rank in one group. ``won`` is a logarithm."""

    __slots__ = ("count", "since", "total", "won")

    def __init__(self) -> None:
        self.won = 0.0
        self.count = 0
        """Observations since the last start; ``total`` is their sum, ``since`` when that was."""
        self.total = 0.0
        self.since = 0.0

    @property
    def mean(self) -> float:
        """Of the observations since the last start."""
        return self.total / self.count if self.count else 0.0

    def observe(self, value: float, allowance: float, spread: float, now: float) -> bool:
        """Take one more; whether it started anew. ``spread`` is of observations before this one."""
        y = min(max((value - allowance) / spread, LOWEST), HIGHEST)
        before = self.won
        self.won = max(before, 0.0) + math.log1p(BET * y)
        anew = before <= 0.0
        if anew:
            self.count, self.total, self.since = 0, 0.0, now
        self.count += 1
        self.total += value
        return anew
