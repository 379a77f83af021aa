"""That it does not matter how journals are divided into tasks, asked of any folder of journals."""

from __future__ import annotations

import functools
import importlib
import random
import sys
import tempfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from disttrace_viewer.diagnosis.verdict import verdict
from disttrace_viewer.findings.finding import RuleFinding
from disttrace_viewer.states import folder
from disttrace_viewer.states.folder import Engine, engine_of, here, local
from disttrace_viewer.states.state import Merged, merge
from support.scenes import nobody_knows
from support.states import done_by_another


def findings(merged: Merged) -> tuple[RuleFinding, ...]:
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


def differing_by_workers(journals: Path, name: str, by: str | None = None) -> list[str]:
    """As ``differing``, of a pool or Dask that loses a worker; ``name`` draws size and kind."""
    drawn = random.Random(zlib.crc32(name.encode()))
    by = by or drawn.choice(("a pool", "Dask"))
    whole = folder.of_journals([str(journals)], batch=1 << 20)
    if len(whole.states) < 2:
        return []  # a single task is done in this process
    size = drawn.randint(1, (len(whole.states) + 1) // 2)
    with tempfile.TemporaryDirectory() as scratch:
        mark = Path(scratch, "died")
        split = folder.of_journals([str(journals)], engine=losing(mark, by), batch=size)
        problems = [] if mark.exists() else [f"no worker of {by} was killed"]
    if split != whole or findings(split) != findings(whole):
        problems.append(f"states by {by} in batches of {size}, a worker killed, say otherwise")
    return problems


def losing(mark: Path, by: str) -> Engine:
    """``a pool`` of processes or ``Dask``, whose first worker is lost; then the mark is there."""
    engine = _dask() if by == "Dask" else local

    def run(function: Callable[[Any], Any], tasks: Sequence[Any]) -> Iterator[Any]:
        return engine(functools.partial(done_by_another, str(mark), function), tasks)

    return run


@functools.cache
def _dask() -> Engine:
    """A cluster of two processes, for as long as this one runs."""
    cluster = importlib.import_module("distributed").LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=":0", host="127.0.0.1",
        silence_logs=60,
    )  # fmt: skip
    _KEPT.append(cluster)
    return engine_of(cluster.scheduler_address)


_KEPT: list[Any] = []
"""Clusters, which close when nobody refers to them."""


if __name__ == "__main__":
    sys.exit("; ".join(differing_by_workers(Path(sys.argv[1]), sys.argv[2])) or None)
