"""What would settle what is only likely."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from disttrace_viewer.trace.model import Trace
from disttrace_viewer.trace.process import ATTACHED, JOURNAL
from disttrace_viewer.wording import sentences

EARLY = "let it hang for longer before ending it: all was ended after a short wait"
"""Of a wait that was cut off so soon that it may have been about to end."""
DEFINITIONS = "collect the definitions (*.defs.jsonl) of the journals here that lack them"


TIMES = (
    "Copy dumps with their times (cp -p, rsync -t, tar), and ask ncclras twice, some seconds apart:"
    " then it is told whether this is a moment of a job that gets on, or a stall."
)
TIMELESS = (
    "since when it is so is not known (files were copied or changed since, or it is one output of"
    " ncclras): who had not come by then may have been on the way."
)


def unseen(trace: Trace, ranks: Sequence[int]) -> str:
    """Of ranks of which nothing was found."""
    they = "they" if len(ranks) > 1 else "it"
    if _all_of(trace, "log"):
        return f"of {sentences.ranks(ranks)} the log has no line"
    if _all_of(trace, ATTACHED):
        does = "do" if len(ranks) > 1 else "does"
        return f"{sentences.ranks(ranks)} {does} not run here, so nobody knows whether {they} came"
    if _all_of(trace, "NCCL RAS"):
        return f"NCCL could not reach {sentences.ranks(ranks)}, so nobody knows whether {they} came"
    if trace.processes and all(p.source != JOURNAL for p in trace.processes):
        return (
            f"{sentences.ranks(ranks)} left no dump ({they} died, kept the GIL, or tore down), so"
            f" nobody knows whether {they} came"
        )
    return f"of {sentences.ranks(ranks)} no journal was found, so nobody knows whether {they} came"


def not_found(trace: Trace) -> str:
    """Of a rank of which nothing was found, by itself."""
    if _all_of(trace, "log"):
        return "the log has no line of it"
    if _all_of(trace, ATTACHED):
        return "does not run here (on another host, or it ended)"
    if _all_of(trace, "NCCL RAS"):
        return "NCCL could not reach it (it died, or its host or network did)"
    if trace.processes and all(p.source != JOURNAL for p in trace.processes):
        return "left no dump (it died, kept the GIL, or tore down; or its dump was not collected)"
    return "no journal found (was it started? was its journal collected?)"


def _all_of(trace: Trace, source: str) -> bool:
    return bool(trace.processes) and all(p.source == source for p in trace.processes)


def nowhere(lacks: Collection[str], since: str, *, many: bool) -> str:
    """Of processes of which nothing tells where they stand, to follow the subject."""
    have, they = ("have", "they") if many else ("has", "it")
    are = "are" if many else "is"
    message = f"; {they} may be in a send or receive" if "messages" in lacks else ""
    return (
        f"{have} enqueued nothing{since}, and where {they} {are}, this evidence does not"
        f" hold{message}"
    )


def journals(ranks: Iterable[int]) -> str:
    """Of ranks of which there is none, or not all."""
    return f"collect the journals of {sentences.ranks(ranks)}"


def lived(trace: Trace, mute: Sequence[int]) -> str:
    """What would settle it where the missing gave no sign of life."""
    who = sentences.processes(trace, mute)
    return f"see whether {who} still lived then (the host's log, dmesg)"
