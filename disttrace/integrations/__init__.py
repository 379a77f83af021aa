"""What trainers of other libraries get of a trace: thin, and nothing where tracing is off.

Here: what ``disttrace.live`` knows, as numbers for a logger and as a note on an exception."""

from __future__ import annotations

import disttrace
from disttrace import foreign

OVER = ("going on", "starting", "waiting", "slow", "slow no more")
"""Kinds of reports of a job that are no reason of an exception."""


def numbers() -> dict[str, float]:
    """Each number of `disttrace.live()` as `disttrace/NAME`, of ranks that are slow how many, and
    the worst one's rank and share; what is None or text draws no curve. Empty without tracing.
    """
    live = disttrace.live()
    slow = live.pop("slow", None) or []
    known = {**live, "slow_ranks": len(slow)} if live else {}
    if slow:
        known.update(slowest_rank=slow[0]["rank"], slowest_share=slow[0]["share"])
    return {
        f"disttrace/{name}": value
        for name, value in known.items()
        if isinstance(value, (int, float)) and name != "rank"
    }


def explain(error: BaseException) -> None:
    """Put the last report of the job below the traceback; Python 3.10 shows no notes."""
    verdict = disttrace.live().get("said")
    if verdict is None or verdict["kind"] in OVER or not hasattr(BaseException, "add_note"):
        return
    note = f"disttrace: {verdict['kind']}: {verdict['summary']}"
    notes = dict.setdefault(foreign.attributes_of(error), "__notes__", [])
    if type(notes) is list and note not in notes:
        notes.append(note)
