"""Processes that meet for one default group claim different world sizes: which ones."""

from __future__ import annotations

from collections.abc import Mapping

from disttrace_viewer.trace.model import Trace
from disttrace_viewer.wording import sentences

HINT = "Give all processes one WORLD_SIZE; compare the environments that start them."


def summary(trace: Trace, claims: Mapping[int, int | None], at: str | None) -> str:
    """``claims``: by process; ``at``: where they meet."""
    told = ((str(size), process) for process, size in claims.items())
    text = sentences.sides(trace, told, "claims", "claim")
    return f"The members of the default group disagree on its world size at {at}: {text}."
