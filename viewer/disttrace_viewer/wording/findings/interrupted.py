"""Somebody ended the job, or one rank, from outside."""

from __future__ import annotations

from collections.abc import Sequence

from disttrace_viewer.trace.model import Location, Trace
from disttrace_viewer.wording import sentences

HINT = (
    "Somebody pressed Ctrl-C, or something sent the signal: a shell, a scheduler, a notebook. What"
    " stood before is the verdict."
)


def summary(
    trace: Trace, who: Sequence[int], *, torchrun: str | None, where: Location | None, whole: bool
) -> str:
    """``whole``: the whole job was; ``torchrun``: what its agent wrote of it; ``where``: the line
    of the first of some ranks.
    """
    were = "were" if len(who) > 1 else "was"
    reported = "SIGINT" if torchrun is None else f"torchrun: {torchrun}"
    at = "" if where is None else f" at {sentences.is_at(where)}"
    then = "; what ranks report after that follows from it" if whole else ""
    return (
        f"{sentences.subject(trace, who)} {were} interrupted from outside ({reported}){at}{then}."
    )
