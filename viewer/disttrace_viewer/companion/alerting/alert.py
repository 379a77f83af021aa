"""What the command of DISTTRACE_ON_STALL gets on its standard input: one object on one line.

It is the object of the first finding, as it is kept beside the journals, with what a command needs
to act: where to look, and which processes these are. The kernel takes a pipe's fill of it at once,
and half an object is none: what is long goes first.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

MOST_BYTES = 60_000
_LEFT_OUT: tuple[tuple[str, Any], ...] = (
    ("report", ""),
    ("also", []),
    ("finding", None),
    ("processes", []),
)
"""In this order, each for what stands in its place."""


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
