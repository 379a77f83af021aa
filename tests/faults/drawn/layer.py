"""A part of a drawn program."""

from __future__ import annotations

from dataclasses import dataclass

from faults.drawn.program import Act


@dataclass(frozen=True, slots=True)
class Layer:
    """Lines before the loop, acts inside it, and lines after it."""

    setup: tuple[str, ...]
    acts: tuple[Act, ...]
    ending: tuple[str, ...] = ()
