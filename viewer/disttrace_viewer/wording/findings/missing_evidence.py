"""What would settle what is only likely."""

from __future__ import annotations

from collections.abc import Iterable

from disttrace_viewer.wording import sentences

EARLY = "let it hang for longer before ending it: all was ended after a short wait"
"""Of a wait that was cut off so soon that it may have been about to end."""
DEFINITIONS = "collect the definitions (*.defs.jsonl) of the journals here that lack them"


def journals(ranks: Iterable[int]) -> str:
    """Of ranks of which there is none, or not all."""
    return f"collect the journals of {sentences.ranks(ranks)}"
