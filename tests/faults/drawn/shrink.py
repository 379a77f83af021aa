"""Makes a program that was judged wrongly smaller, as long as it still is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from faults.drawn.program import BARE, Program
from faults.drawn.truth import Faulty


def shrink(faulty: Faulty, still_wrong: Callable[[Faulty], bool], *, tries: int = 12) -> Faulty:
    """The smallest program found within ``tries`` runs for which ``still_wrong`` holds."""
    best = faulty
    progress = True
    while progress and tries > 0:
        progress = False
        for smaller in _smaller(best.program):
            if tries <= 0:
                break
            tries -= 1
            candidate = Faulty(smaller, best.truth)
            if still_wrong(candidate):
                best, progress = candidate, True
                break
    return best


def _smaller(program: Program) -> Iterator[Program]:
    """One step smaller each: fewer steps, without one act, started bare."""
    change = program.change
    least = 1 if change is None else change.step + 1
    if program.steps > least:
        yield program.but(steps=least)
    if program.launch != BARE:
        yield program.but(launch=BARE)
    for index in range(len(program.body)):
        if change is not None and index == change.act:
            continue
        body = (*program.body[:index], *program.body[index + 1 :])
        moved = change
        if change is not None and index < change.act:
            moved = replace(change, act=change.act - 1)
        yield program.but(body=body, change=moved)
