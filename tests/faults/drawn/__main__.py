"""Draws programs and faults from a seed, runs them, and prints how often the diagnosis was right.

    make faults-random N=200 SEED=1
    PYTHONPATH=tests python -m faults.drawn --number 200 --seed 1 --jobs 4
    PYTHONPATH=tests python -m faults.drawn --number 20 --having "parameters "

Run k of seed s is drawn from (s, k) alone: ``--only k`` runs it again. Each wrong one is made
smaller and printed with its source.
"""

from __future__ import annotations

import functools
import itertools
import os
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path

from faults.drawn.catalogue import faulty
from faults.drawn.executor import Run, Zygote, run
from faults.drawn.frameworks import PACKAGES
from faults.drawn.program import source
from faults.drawn.shrink import shrink
from faults.drawn.truth import Faulty
from frameworks.libraries import environment
from support import marked
from support.campaigns import options
from support.processes import busy


def drawn(seed: int, number: int, *, frameworks: bool = False, harmless: bool = False) -> Faulty:
    """Program and fault of one run; ``frameworks``, ``harmless``: as ``catalogue.faulty``."""
    draw = random.Random(f"{seed}/{number}")
    return faulty(draw, frameworks=frameworks, harmless=harmless)


def main() -> int:
    """Run them; exit code 1 where less than 97 % is right, or somebody innocent was named."""
    chosen = options(
        __doc__, number=200, seed=1, only=[int], having="", jobs=4, no_shrink=False, keep=Path,
        show=False, healthy=False, load=0, frameworks=False,
    )  # fmt: skip
    if chosen.frameworks and not all(find_spec(package) for package in PACKAGES):
        python = str(environment(*PACKAGES) / "python")
        os.execv(python, [python, "-m", "faults.drawn", *sys.argv[1:]])
    of = functools.partial(
        drawn, chosen.seed, frameworks=chosen.frameworks, harmless=chosen.healthy
    )
    fitting = (
        n
        for n in itertools.count()
        if chosen.having in of(n).truth.name or chosen.having in source(of(n).program)
    )
    numbers = chosen.only or [*itertools.islice(fitting, chosen.number)]
    if chosen.show:
        for number in numbers:
            one = of(number)
            print(f"# {number}: {one.truth}\n{source(one.program)}")
        return 0
    began = time.monotonic()
    zygote = Zygote()

    def execute(one: Faulty, name: str = "smaller") -> Run:
        with tempfile.TemporaryDirectory(prefix="disttrace-drawn-") as folder:
            try:
                found = run(one, Path(folder), zygote)
            except Exception as error:  # the others are run all the same
                found = Run(one, (), "", f"not judged: {error!r}")
            if chosen.keep and (found.wrong or found.certain_wrong):
                shutil.copytree(folder, chosen.keep / name, dirs_exist_ok=True)
            return found

    results: dict[int, Run] = {}
    load = busy(chosen.load, **{marked.VARIABLE: f"{zygote.mark}/load"})
    with load, ThreadPoolExecutor(chosen.jobs) as pool:
        runs = pool.map(lambda n: execute(of(n), f"{chosen.seed}-{n}"), numbers)
        for number, result in zip(numbers, runs, strict=True):
            results[number] = result
            said = [*result.wrong, *(f"certain and wrong: {s}" for s in result.certain_wrong)]
            if said:
                print(f"{number}: {result.faulty.truth.name}: {'; '.join(said)}", flush=True)
    wrong = {number: result for number, result in results.items() if result.wrong}
    for number, result in {} if chosen.no_shrink else wrong.items():
        _explain(number, shrink(result.faulty, lambda one: bool(execute(one).wrong)), execute)
    zygote.close()
    return _summary(chosen.seed, results, time.monotonic() - began)


def _explain(number: int, smallest: Faulty, execute: object) -> None:
    result = execute(smallest) if callable(execute) else None
    print(f"\n# run {number}: {smallest.truth}")
    if result is not None:
        for line in result.wrong:
            print(f"# {line}")
        for one in result.said:
            for found in one.findings:
                print(f"#   {one.when}: {found['kind']} ({found['certainty']}): {found['summary']}")
    print(source(smallest.program), flush=True)


def _summary(seed: int, results: dict[int, Run], seconds: float) -> int:
    total, right = Counter[str](), Counter[str]()
    for result in results.values():
        name = result.faulty.truth.name
        total[name] += 1
        right[name] += not result.wrong
    for name, count in sorted(total.items()):
        print(f"  {name:24} {right[name]:4} of {count}")
    silent = sum(result.silent for result in results.values())
    blamed = sum(result.blamed for result in results.values())
    certain = sum(bool(result.certain_wrong) for result in results.values())
    good = sum(right.values())
    print(
        f"seed {seed}: {good} of {len(results)} right ({good / len(results):.1%}), {silent} silent,"
        f" {blamed} blamed the innocent, {certain} certain and wrong; {seconds:.0f} s"
    )
    return 0 if good >= 0.97 * len(results) and not blamed and not certain else 1


if __name__ == "__main__":
    raise SystemExit(main())
