"""The file in which whoever asks on this host reads what is known of its ranks, anew each second.

``disttrace.live()`` reads it, and ``disttrace serve``. It lies where processes of a host leave word
for each other, and is written in place: all ranks look at that folder whether it has changed.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import orjson

import disttrace.journal.format as fmt
from disttrace_viewer.companion.slow import words
from disttrace_viewer.companion.slow.follower import Follower
from disttrace_viewer.companion.slow.ranks import Slow

OVER_S = 60.0
"""Time over which the share is that a rank spends in communication."""
MOST_SLOW = 32


def verdict_of(said: Mapping[str, Any]) -> dict[str, Any]:
    """What dashboards show of a verdict: kind, culprits, the first line, certainty."""
    finding = said.get("finding") or {}
    places = [f"{at['file']}:{at['line']}" for at in finding.get("locations", ())[:1]]
    return {
        "kind": finding.get("kind", said.get("kind")),
        "culprit": ",".join(map(str, said.get("culprit_ranks") or ())),
        "line": "".join(places),
        "certainty": said.get("certainty"),
    }


class LiveFile:
    """The file at ``path``, of ``job`` on ``host``; ``stands``: the verdict on a stall that the
    job told from this host and that is not over."""

    def __init__(
        self, path: str, job: str, host: str, stands: Callable[[], dict[str, Any] | None]
    ) -> None:
        self._path, self._job, self._host, self._stands = path, job, host, stands
        self._fd = -1
        self._sums: deque[tuple[float, dict[str, tuple[int, int]]]] = deque()

    def write(self, of: Iterable[Follower], slow: Sequence[Slow], places: words.Places) -> None:
        """What is known now. Raises OSError."""
        ranks = [one for one in of if one.definitions.rank is not None]
        now = time.monotonic()
        sums = {one.definitions.id: (one.holds.held_ns, one.holds.away_ns) for one in ranks}
        self._sums.append((now, sums))
        while now - self._sums[0][0] > OVER_S:
            self._sums.popleft()
        stands = self._stands()
        known = {
            "at": time.time(),
            "job": self._job,
            "host": self._host,
            "stalled": stands is not None,
            "verdict": {} if stands is None else verdict_of(stands),
            "ranks": {
                one.definitions.id: {
                    "rank": one.definitions.rank,
                    "waiting_share": self._share(one.definitions.id, sums),
                }
                for one in ranks
            },
            "slow": [
                {
                    "rank": one.rank,
                    "share": round(one.share, 4),
                    "since": one.since,
                    "line": words.line_of(one.place, places),
                    "others": one.others,
                    "rank_hours": one.rank_hours,
                }
                for one in slow[:MOST_SLOW]
            ],
        }
        if self._fd < 0:
            self._fd = fmt.open_own(self._path, os.O_CREAT | os.O_RDWR)
        data = orjson.dumps(known) + b"\n"
        os.pwrite(self._fd, data, 0)
        os.ftruncate(self._fd, len(data))

    def remove(self) -> None:
        """Nobody writes it any more."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
            fmt.remove_own(self._path)

    def _share(self, name: str, sums: dict[str, tuple[int, int]]) -> float | None:
        held, away = sums[name]
        held_before, away_before = self._sums[0][1].get(name, (0, 0))
        spent = held - held_before + away - away_before
        return round((held - held_before) / spent, 4) if spent else None
