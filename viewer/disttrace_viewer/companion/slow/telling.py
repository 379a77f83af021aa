"""Whom to tell of, and when: a whole host as one, each culprit once an hour, and the end of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from disttrace_viewer.companion.slow.ranks import Slow

AGAIN_S = 3600.0
"""At most one line in so long of each culprit."""
TOGETHER_S = 120.0
"""So long the other ranks of a host have to become slow as well, once most of them lean to it."""
MOST = 8
"""Lines in an hour: of more there is no more to learn."""


@dataclass(frozen=True, slots=True)
class Told:
    """One line: ``slow`` ranks, of a whole ``host`` or None; ``over``: they are not slow now."""

    slow: tuple[Slow, ...]
    host: str | None
    over: bool = False


class Telling:
    """What was told, so that nothing is told twice."""

    def __init__(self, share: float) -> None:
        self._share = share
        self._seen: dict[int, float] = {}
        """When a rank was first found to be slow."""
        self._told: dict[tuple[int, ...], float] = {}
        self._open: dict[tuple[int, ...], Told] = {}
        """What was told and is not over."""

    def due(
        self,
        slow: Sequence[Slow],
        hosts: Mapping[int, str],
        leaning: Callable[[int], float | None],
        now: float,
    ) -> list[Told]:
        """The lines that are due. ``hosts``: by rank; ``leaning``: the share of a rank so far, None
        where nothing is known of it any more.
        """
        ranks = {one.rank: one for one in reversed(slow)}  # the worst of a rank's groups
        self._seen = {rank: self._seen.get(rank, now) for rank in ranks}
        found, taken = [], set[int]()
        for rank, one in ranks.items():
            beside = sorted(r for r, host in hosts.items() if host == hosts.get(rank))
            if rank in taken:
                continue
            whole = len(beside) > 1 and len(set(hosts.values())) > 1
            if whole and all(r in ranks for r in beside):
                taken.update(beside)
                found.append(Told(tuple(ranks[r] for r in beside), hosts[rank]))
            elif not (
                whole
                and now - self._seen[rank] < TOGETHER_S
                and all((leaning(r) or 0.0) >= self._share / 2 for r in beside)
            ):
                found.append(Told((one,), None))
        lines = self._ended(ranks, leaning)
        for told in sorted(found, key=lambda told: -max(one.share for one in told.slow)):
            key = tuple(one.rank for one in told.slow)
            if any(set(key) <= set(other) and other != key for other in self._open):
                continue  # a part of a host that was told
            self._told = {k: at for k, at in self._told.items() if now - at < AGAIN_S}
            if key not in self._told and len(self._told) < MOST:
                self._told[key] = now
                lines.append(told)
                self._open[key] = told
            elif key in self._open:
                self._open[key] = told
        return lines

    def _ended(
        self, ranks: Mapping[int, Slow], leaning: Callable[[int], float | None]
    ) -> list[Told]:
        ended = [key for key in self._open if not any(rank in ranks for rank in key)]
        over = [(key, self._open.pop(key)) for key in ended]
        return [
            Told(one.slow, one.host, over=True)
            for key, one in over
            if any(leaning(rank) is not None for rank in key)  # else they have stopped or ended
        ]
