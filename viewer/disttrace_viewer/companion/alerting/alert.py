"""What the command of DISTTRACE_ON_STALL gets on its standard input: one object on one line.

It is the object of the first finding, as it is kept beside the journals, with what a command needs
to act: where to look, and which processes these are. The kernel takes a pipe's fill of it at once,
and half an object is none: what is long goes first.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from disttrace_viewer.findings.finding import Finding
from disttrace_viewer.trace.process import Process

MOST_BYTES = 60_000
MOST_PROCESSES = 64
_LEFT_OUT: tuple[tuple[str, Any], ...] = (
    ("report", ""),
    ("also", []),
    ("finding", None),
    ("processes", []),
)
"""In this order, each for what stands in its place."""


def processes(
    trace: Sequence[Process], findings: Sequence[Finding], is_here: Callable[[Process], bool]
) -> list[dict[str, Any]]:
    """The culprits of the first finding, then those who wait. ``is_here``: it runs on this host."""
    if not findings:
        return []
    found = findings[0]
    concerned = list(dict.fromkeys((*found.culprits, *found.waiting)))[:MOST_PROCESSES]
    return [
        {
            "id": one.id,
            "rank": one.rank,
            "host": one.host,
            "pid": one.pid,
            "culprit": index in found.culprits,
            "here": is_here(one),
        }
        for index in concerned
        for one in [trace[index]]
    ]


def line(said: Sequence[dict[str, Any]], alert: dict[str, Any]) -> str:
    """The object as JSON; ``said``: what is told, the first finding first."""
    first, *others = said
    whole = {**first, "also": others, **alert}
    text = json.dumps(whole)
    for key, instead in _LEFT_OUT:
        if len(text) < MOST_BYTES:
            break
        whole[key] = instead
        text = json.dumps(whole)
    return text + "\n"
