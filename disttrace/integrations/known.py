"""What ``disttrace.live`` knows, as numbers for a logger and as a note on an exception."""

from __future__ import annotations

import disttrace

OVER = ("going on", "starting", "waiting")
"""Kinds of what a job says that are no reason of an exception."""


def numbers() -> dict[str, float]:
    """Each number of `disttrace.live()` as `disttrace/NAME`, of a list its length; what is None or
    text draws no curve. Empty without tracing.
    """
    found: dict[str, float] = {}
    for name, value in disttrace.live().items():
        if isinstance(value, list):
            found[f"disttrace/{name}"] = len(value)
        elif isinstance(value, (int, float)) and name != "rank":
            found[f"disttrace/{name}"] = value
    return found


def explain(error: BaseException) -> None:
    """Put what the job said last of itself on this host below the exception's traceback.

    Python 3.10 shows no notes, and gets none.
    """
    said = disttrace.live().get("said")
    if said is None or said["kind"] in OVER or not hasattr(error, "add_note"):
        return
    note = f"disttrace: {said['kind']}: {said['summary']}"
    if note not in getattr(error, "__notes__", ()):
        error.add_note(note)
