"""PyTorch's own distributed tests, plain and under tracing: the outcomes must be the same.

python -m torch_suite.compare [--limit SECONDS] [TEST ...]       without names: all
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from support.processes import clean_environ, run_program

HERE = Path(__file__).parent


def outcomes(folder: Path, names: Sequence[str], limit: float, *, traced: bool) -> dict[str, str]:
    """Outcome by test; those that a run of more than ``limit`` seconds did not reach are absent."""
    label = "traced" if traced else "plain"
    path = folder / f"{label}.json"
    path.write_text("{}")
    variables = {"OMP_NUM_THREADS": "1", "TEMP_DIR": str(folder / f"{label}-files")}
    if traced:
        variables |= {"DISTTRACE": "1", "DISTTRACE_DIR": str(folder / "journals")}
    environ = clean_environ(**variables)
    if importlib.util.find_spec("expecttest") is None:
        environ["PYTHONPATH"] += os.pathsep + str(HERE / "stand_in")
    run_program([sys.executable, HERE / "suite.py", path, *names], environ, limit, cwd=folder)
    found: dict[str, str] = json.loads(path.read_text())
    return found


def differences(plain: dict[str, str], traced: dict[str, str]) -> dict[str, tuple[str, str]]:
    """By test the outcomes without and with tracing, where they differ."""
    missing = "not reached"
    pairs = {
        name: (plain.get(name, missing), traced.get(name, missing))
        for name in sorted(plain.keys() | traced.keys())
    }
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def main() -> int:
    """Print the differences; the exit code is 1 if one stays when its test is run again."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--limit", type=float, default=3600.0, help="seconds for each run")
    parser.add_argument("names", nargs="*", metavar="TEST")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="disttrace-suite-") as name:
        folder = Path(name)
        plain = outcomes(folder, options.names, options.limit, traced=False)
        traced = outcomes(folder, options.names, options.limit, traced=True)
        found = differences(plain, traced)
        for test in list(found):  # some of these tests fail now and then by themselves
            again = [outcomes(folder, [test], 300.0, traced=on) for on in (False, True)]
            if not differences(*again):
                print(f"differed once, not again: {test}: {found.pop(test)}")
    passed = sum(outcome == "ok" for outcome in traced.values())
    skipped = sum(outcome.startswith("skipped") for outcome in traced.values())
    print(f"{len(traced)} tests: {passed} ok, {skipped} skipped, {len(found)} differ under tracing")
    for test, (before, after) in found.items():
        print(f"  {test}: {before} -> {after}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
