"""A part of a drawn program."""

from __future__ import annotations

from dataclasses import dataclass

from faults.drawn.program import COLLECTIVE, Act


@dataclass(frozen=True, slots=True)
class Layer:
    """Lines before the loop, acts inside it, and lines after it."""

    setup: tuple[str, ...]
    acts: tuple[Act, ...]
    ending: tuple[str, ...] = ()


def everybody(world: int) -> dict[int, tuple[int, ...]]:
    """All ranks run a line, and all take part in what it does."""
    return {rank: tuple(range(world)) for rank in range(world)}


def together(template: str, world: int, kind: str = COLLECTIVE, **fields: str) -> Act:
    return Act(kind=kind, template=template, fields=fields, members=everybody(world))
