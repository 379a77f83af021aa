"""That it does not matter how journals are divided into tasks, asked of any folder of journals."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from disttrace_viewer.findings.finding import Finding
from disttrace_viewer.states import folder, verdict
from disttrace_viewer.states.engines import here
from disttrace_viewer.states.merged import Merged, merge
from support.scenes import nobody_knows


def findings(merged: Merged) -> tuple[Finding, ...]:
    """What is wrong, of another host's journals."""
    return verdict(merged, look=nobody_knows).findings


def drawn(seed: int) -> Callable[[Callable[[Any], Any], Sequence[Any]], Iterator[Any]]:
    """An engine whose results come in an order drawn from a seed."""

    def engine(function: Callable[[Any], Any], tasks: Sequence[Any]) -> Iterator[Any]:
        results = list(here(function, tasks))
        random.Random(seed).shuffle(results)
        return iter(results)

    return engine


def differing(journals: Path, seeds: Sequence[int] = (1, 2, 3)) -> list[str]:
    """How splits whose findings are not those of the whole were made, as sentences."""
    whole = findings(folder.of_journals([str(journals)], batch=1 << 20))
    problems = []
    for seed in seeds:
        size = random.Random(seed).randint(1, 4)
        split = folder.of_journals([str(journals)], engine=drawn(seed), batch=size)
        halves = [merge([state]) for state in split.states.values()]
        random.Random(seed).shuffle(halves)
        tree = merge([merge(halves[::2]), merge(halves[1::2])])
        for name, merged in (("tasks", split), ("a tree", tree)):
            if findings(merged) != whole:
                problems.append(f"states merged by {name} of {size} (seed {seed}) say otherwise")
    return problems
