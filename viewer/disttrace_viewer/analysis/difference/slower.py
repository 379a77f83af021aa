"""Whether the same call takes longer in another run, beyond what it varies within each run."""

from __future__ import annotations

from collections.abc import Sequence

FEWEST = 8
"""Times of a call on each side below which nothing is said."""
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
