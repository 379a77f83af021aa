"""What is reported of ranks that make others wait: a line, an object, and the live file.

``disttrace.live()`` reads that file, and ``disttrace serve``. It lies at the meeting place of the
processes of a host, and is written in place: all ranks look at that folder whether it has changed.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import orjson

import disttrace.journal.format as fmt
from disttrace_viewer.companion.follower import Follower
from disttrace_viewer.companion.slow_ranks import RANK_HOURS, Slow
from disttrace_viewer.trace.process import Frame
from disttrace_viewer.wording import sentences
from disttrace_viewer.wording.names import file_name

KIND, OVER = "slow", "slow no more"
UNNAMED = ""
"""A host that does not give its name without the job's secret."""
HINT = (
    "Look at what it does before that line: data loading, logging, a slower device, or more work "
    "than the others. disttrace stats tells more."
)
Places = Mapping[str, tuple[str, Frame | None]]


def line_of(place: str, places: Places) -> str | None:
    """``loader.py:40``; None where no rank of this host came by it."""
    _, frame = places.get(place, ("", None))
    return None if frame is None else f"{file_name(frame.file)}:{frame.line}"


def summary(slow: Sequence[Slow], host: str | None, places: Places) -> str:
    """Of one rank, or of all of one ``host``."""
    line = line_of(slow[0].place, places)
    before = "" if line is None else f", before {line}"
    lost = max(one.rank_hours for one in slow)
    return (
        f"{_who(slow, host)} made {_others(slow)} wait {percent(slow)} of the time since "
        f"{_at(min(one.since for one in slow))}{before} ({lost:.2g} rank hours so far; "
        f"false alarm rate 1 in {RANK_HOURS:,} rank hours)"
    )


def over(slow: Sequence[Slow], host: str | None, now: float) -> str:
    """It is over, and what it was."""
    lost = max(one.rank_hours for one in slow)
    return (
        f"{_who(slow, host)} made {_others(slow)} wait {percent(slow)} of the time from "
        f"{_at(min(one.since for one in slow))} on, and has not of late ({_at(now)}); "
        f"{lost:.2g} rank hours in all"
    )


def percent(slow: Sequence[Slow]) -> str:
    """Their share, of several the mean one."""
    return f"{100 * sum(one.share for one in slow) / len(slow):.0f} %"


def _who(slow: Sequence[Slow], host: str | None) -> str:
    ranks = [one.rank for one in slow]
    if host is None:
        return f"{sentences.ranks(ranks)} {sentences.have(ranks)}"
    name = "one host" if host == UNNAMED else f"host {host}"
    return f"{name} ({sentences.ranks(ranks)}) has"


def _others(slow: Sequence[Slow]) -> str:
    others = max(one.others for one in slow)
    if len(slow) > 1:  # none of them waits for the others of its host
        others = len(_waiting(slow)) or others
    return f"{others:,} {'other' if others == 1 else 'others'}"


def _waiting(slow: Sequence[Slow]) -> list[int]:
    return sorted({rank for one in slow for rank in one.waiting} - {one.rank for one in slow})


def _at(seconds: float) -> str:
    return time.strftime("%H:%M", time.localtime(seconds))


def object_of(
    slow: Sequence[Slow], text: str, places: Places, ids: Mapping[int, str]
) -> dict[str, Any]:
    """The object, with a finding that has the fields of ``diagnose --json``; ``ids``: of the
    processes of this host, by rank.
    """
    ranks = sorted(one.rank for one in slow)
    waiting = _waiting(slow)
    op, frame = places.get(slow[0].place, ("", None))
    locations = []
    if frame is not None:
        where = {"file": frame.file, "line": frame.line, "function": frame.function, "op": op}
        locations = [{"process": ids.get(rank), "rank": rank, **where} for rank in ranks]
    finding = {
        "kind": "straggler",
        "severity": "warning",
        "certainty": "likely",
        "summary": text,
        "hint": HINT,
        "culprits": [ids[rank] for rank in ranks if rank in ids],
        "culprit_ranks": ranks,
        "waiting": [ids[rank] for rank in waiting if rank in ids],
        "waiting_ranks": waiting,
        "op": op or None,
        "group": slow[0].group or None,
        **dict.fromkeys(("seq", "key", "cycle")),
        "locations": locations,
        "consequences": [],
    }
    return {"certainty": "likely", "summary": text, "culprit_ranks": ranks, "finding": finding}


OVER_S = 60.0
"""Time over which the share is that a rank spends in communication."""
MOST_SLOW = 32


def verdict_of(object_of: Mapping[str, Any]) -> dict[str, Any]:
    """What dashboards show of a verdict: kind, culprits, the first line, certainty."""
    finding = object_of.get("finding") or {}
    places = [f"{at['file']}:{at['line']}" for at in finding.get("locations", ())[:1]]
    return {
        "kind": finding.get("kind", object_of.get("kind")),
        "culprit": ",".join(map(str, object_of.get("culprit_ranks") or ())),
        "line": "".join(places),
        "certainty": object_of.get("certainty"),
    }


class LiveFile:
    """The file at ``path``, of ``job`` on ``host``; ``stands``: the verdict on a stall that the
    job reported from this host and that is not over."""

    def __init__(
        self, path: str, job: str, host: str, stands: Callable[[], dict[str, Any] | None]
    ) -> None:
        self._path, self._job, self._host, self._stands = path, job, host, stands
        self._fd = -1
        self._sums: deque[tuple[float, dict[str, tuple[int, int]]]] = deque()

    def write(self, of: Iterable[Follower], slow: Sequence[Slow], places: Places) -> None:
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
                    "line": line_of(one.place, places),
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
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
            fmt.remove_own(self._path)

    def _share(self, name: str, sums: dict[str, tuple[int, int]]) -> float | None:
        held, away = sums[name]
        held_before, away_before = self._sums[0][1].get(name, (0, 0))
        spent = held - held_before + away - away_before
        return round((held - held_before) / spent, 4) if spent else None
