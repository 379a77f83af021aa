"""Runs a measuring function in interpreters of its own, one per rank, and brings its result back.

    python -m benchmarks.recorder.child MODULE FUNCTION ARGUMENTS RESULT

Import of torch, patches and profilers of one measurement never meet those of another.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import tempfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import MappingProxyType
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


class MeasurementFailed(Exception):  # noqa: N818 - reads as what happened
    """A child ended badly or took too long; the text says what it left on stderr."""


def measure(
    module: str,
    function: str,
    arguments: dict[str, Any],
    *,
    ranks: int = 1,
    timeout: float = 300.0,
    variables: Mapping[str, str] = MappingProxyType({}),
) -> list[Any]:
    """Results of ``module.function(**arguments)`` by rank.

    With several ranks the environment says RANK and WORLD_SIZE, and BENCH_INIT is an
    ``init_method`` of their own. Raises MeasurementFailed.
    """
    from support.processes import clean_environ, run_program

    with tempfile.TemporaryDirectory(prefix="bench-") as folder:

        def run(rank: int) -> Any:
            result = Path(folder) / f"{rank}.json"
            environ = clean_environ(
                OMP_NUM_THREADS="1",
                RANK=str(rank),
                WORLD_SIZE=str(ranks),
                BENCH_INIT=f"file://{folder}/meeting",
                **variables,
            )
            command = [sys.executable, "-m", "benchmarks.recorder.child", module, function]
            command += [json.dumps(arguments), str(result)]
            outcome = run_program(command, environ, timeout, cwd=ROOT)
            # A child may abort after its last line (torch, with groups): its result counts.
            if not result.exists():
                raise MeasurementFailed(f"{module}.{function}, rank {rank}: {outcome}")
            return json.loads(result.read_text())

        with ThreadPoolExecutor(ranks) as pool:
            return list(pool.map(run, range(ranks)))


def main() -> int:
    """Call the function and leave its result in the file."""
    module, function, arguments, result = sys.argv[1:]
    found = getattr(importlib.import_module(module), function)(**json.loads(arguments))
    unfinished = Path(f"{result}.part")
    unfinished.write_text(json.dumps(found))
    os.replace(unfinished, result)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
