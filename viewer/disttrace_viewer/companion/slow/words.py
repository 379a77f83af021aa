"""What is said of ranks that make others wait: a line, and the same as an object."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from disttrace_viewer.companion.slow.ranks import RANK_HOURS, Slow
from disttrace_viewer.trace.process import Frame
from disttrace_viewer.wording import sentences
from disttrace_viewer.wording.quantities import file_name

KIND, OVER = "slow", "slow no more"
UNNAMED = ""
"""A host that tells its name to nobody without the job's secret."""
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


def said(slow: Sequence[Slow], text: str, places: Places, ids: Mapping[int, str]) -> dict[str, Any]:
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
