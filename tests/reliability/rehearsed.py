"""Rehearses drawn programs of which one rank does something else once, and healthy ones.

python tests/reliability/rehearsed.py --runs 24 --seed 1

They are those of ``faults.drawn``, each as ``disttrace check -n N -- program.py``. Of a fault the
exit code has to be 1 and nobody innocent may be named; a healthy program has to end with 0. Of the
faults 95 % are to be found.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from faults.drawn.__main__ import drawn
from faults.drawn.program import BARE, source
from faults.drawn.truth import Faulty
from support.campaigns import options
from support.processes import clean_environ, run_program

ONCE = ("skip", "swallow", "repeat", "swap", "wrong")
"""How the names of faults begin that are one other call of one rank."""


def fitting(seed: int, names: tuple[str, ...]) -> Iterator[tuple[int, Faulty]]:
    """Those that any launcher can start, with their numbers."""
    for number in itertools.count():
        one = drawn(seed, number)
        odd = one.program.environ or one.program.absent or one.program.restarts
        if one.truth.name.startswith(names) and not odd:
            yield number, one


def rehearsed(one: Faulty, folder: Path) -> tuple[int, dict[str, Any], float]:
    """Exit code, report, and seconds."""
    program = folder / "program.py"
    text = source(one.program.but(launch=BARE))
    program.write_text(text.replace('init_process_group("gloo"', 'init_process_group("nccl"'))
    command = [sys.executable, "-m", "disttrace", "check", "-n", str(one.program.world)]
    command += ["--format", "json", "--timeout", "120", "--", str(program)]
    began = time.monotonic()
    done = run_program(command, clean_environ(OMP_NUM_THREADS="1"), 400, cwd=folder)
    took = time.monotonic() - began
    try:
        report = json.loads(done.stdout)
    except ValueError:
        report = {"findings": [], "said": done.stderr[-400:]}
    return done.code, report, took


def main() -> int:
    """1 below 95 % of the faults, or with anybody blamed or alarmed wrongly."""
    chosen = options(__doc__, runs=24, healthy=6, seed=1)
    faulty = itertools.islice(fitting(chosen.seed, ONCE), chosen.runs)
    healthy = itertools.islice(fitting(chosen.seed, ("healthy",)), chosen.healthy)
    found = wrong = 0
    for number, one in itertools.chain(faulty, healthy):
        with tempfile.TemporaryDirectory(prefix="disttrace-rehearsed-") as folder:
            code, report, took = rehearsed(one, Path(folder))
        bad = [each for each in report["findings"] if each["severity"] != "note"]
        named = {rank for each in bad for rank in each["culprit_ranks"]}
        is_fault = bool(one.truth.kinds)
        right = code == is_fault or (one.truth.harmless and code == 0)
        innocent = named - one.truth.guilty
        found += right and is_fault
        wrong += bool(innocent) or not (right or is_fault)
        kinds = [each["kind"] for each in bad]
        mark = "wrong" if innocent or not right else "right"
        print(
            f"{mark}: {number}, {one.truth.name}, {one.program.world} ranks, guilty"
            f" {sorted(one.truth.guilty)}: exit {code}, {kinds}, named {sorted(named)} in"
            f" {took:.0f} s (load {os.getloadavg()[0]:.0f})",
            flush=True,
        )
        if mark == "wrong":
            print(report.get("said") or "\n".join(each["summary"] for each in bad), flush=True)
    print(f"{found} of {chosen.runs} faults found, {wrong} wrong")
    return found < 0.95 * chosen.runs or wrong > 0


if __name__ == "__main__":
    sys.exit(main())
