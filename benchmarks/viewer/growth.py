"""How the cost of a verdict grows: with ranks, hosts, groups and operations, four sizes of each;
also where all processes ended one after the other, or each by an exception of its own.

    make bench-viewer

The jobs of a series are made (``benchmarks/viewer/jobs.py``), diagnosed in turn by the command, in
three rounds, and deleted. Counted is processor time, of that process and of its workers, less that
of a job of 8 ranks, with modules compiled before, as where they are installed. Of the rounds the
fastest counts: whatever else the machine does makes processor time longer as well, and by another
half a minute later. What takes more than ``LONG_S`` is run once. Sizes are such that each takes
most of a second beside the start. The exponent is the slope of a line through the logarithms, by
least squares. ``whole`` reads journals as a whole, ``states`` reduces each to its state: jobs of
more than 2,000 journals.
"""

from __future__ import annotations

import argparse
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT)]

from benchmarks.viewer.jobs import Shape, make  # noqa: E402

LIMIT_S = 900
GOAL = 1.1
LONG_S = 10.0
ROUNDS = 3
SMALL = Shape(2, 2, 2, 3, fault="tp")
HANG = Shape(8, 32, 8, 3, fault="tp", hosts_apart=False)


@dataclass(frozen=True, slots=True)
class Series:
    """Jobs that differ in one size only."""

    what: str
    sizes: tuple[int, ...]
    shapes: tuple[Shape, ...]


SERIES = (
    Series(
        "ranks, by states",
        (2_048, 4_096, 8_192, 16_384),
        tuple(replace(HANG, dp=dp) for dp in (32, 64, 128, 256)),
    ),
    *(
        Series(
            f"ranks that ended {ends}, by states",
            (1_024, 2_048, 4_096, 8_192),
            tuple(replace(HANG, dp=dp, ends=ends) for dp in (16, 32, 64, 128)),
        )
        for ends in ("scattered", "raised")
    ),
    Series(
        "ranks of which each fourth calls something else, by states",
        (2_048, 4_096, 8_192, 16_384),
        tuple(replace(HANG, dp=dp, fault="world", parted=4) for dp in (32, 64, 128, 256)),
    ),
    Series(
        "hosts of 2,048 ranks, by states",
        (16, 64, 256, 2_048),
        tuple(replace(HANG, hosts_apart=True, per_host=n) for n in (128, 32, 8, 1)),
    ),
    Series(
        "groups of 2,048 ranks, by states",
        tuple(len(replace(HANG, more=n).groups) for n in (4, 8, 16, 32)),
        tuple(replace(HANG, more=n) for n in (4, 8, 16, 32)),
    ),
    Series(
        "ranks, whole",
        (256, 512, 1_024, 1_536),
        tuple(replace(HANG, dp=dp, steps=60) for dp in (4, 8, 16, 24)),
    ),
    Series(
        "hosts of 1,024 ranks, whole",
        (16, 64, 256, 1_024),
        tuple(Shape(8, 16, 8, 3, fault="tp", per_host=n, hosts_apart=True) for n in (64, 16, 4, 1)),
    ),
    Series(
        "operations of 8 ranks, whole",
        (400_000, 800_000, 1_600_000, 3_000_000),
        tuple(Shape(2, 2, 2, 125, repeat=n, fault="tp") for n in (20, 40, 80, 150)),
    ),
)


def exponent(sizes: Sequence[float], costs: Sequence[float]) -> float:
    """The slope of the logarithm of costs over that of sizes, by least squares."""
    across = [math.log(size) for size in sizes]
    up = [math.log(cost) for cost in costs]
    x, y = sum(across) / len(across), sum(up) / len(up)
    steep = sum((a - x) * (b - y) for a, b in zip(across, up, strict=True))
    return steep / sum((a - x) ** 2 for a in across)


def costs(shapes: Sequence[Shape], scratch: str) -> list[float]:
    """Processor seconds of a verdict on each. Raises RuntimeError for a wrong one."""
    with tempfile.TemporaryDirectory(dir=scratch) as folder:
        jobs = [(Path(folder, str(number)), shape) for number, shape in enumerate(shapes)]
        culprits = [make(path, shape)["culprit"] for path, shape in jobs]
        best = [math.inf] * len(jobs)
        for _ in range(ROUNDS):
            for number, (path, shape) in enumerate(jobs):
                if not LONG_S < best[number] < math.inf:
                    named = 0 if shape.ends == "raised" else culprits[number]  # who raised first
                    told = '{\n          "from": 1,' if shape.parted else f"{named}\n"
                    wanted = f'"culprit_ranks": [\n        {told}'.encode()
                    best[number] = min(best[number], _run(str(path), scratch, wanted))
    return best


def _run(folder: str, scratch: str, wanted: bytes) -> float:
    kept = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    before = os.times()
    done = subprocess.run(
        [sys.executable, "-m", "disttrace", "diagnose", "--json", folder],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        timeout=LIMIT_S,
        check=False,
        env={**kept, "PYTHONPYCACHEPREFIX": str(Path(scratch) / "compiled")},
    )
    after = os.times()
    if wanted not in done.stdout:
        raise RuntimeError(f"the verdict on {folder} does not name the culprit")
    spent = after.children_user - before.children_user
    return spent + after.children_system - before.children_system


def main() -> int:
    """Measure, print a line per series; 1 where a goal is missed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default="", help="series whose names hold this")
    parser.add_argument("--scratch", default=tempfile.gettempdir())
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.scratch) as scratch:
        return measured(args.only, scratch)


def measured(only: str, scratch: str) -> int:
    """Each series whose name holds ``only``; 1 where a goal is missed."""
    (least,) = costs([SMALL], scratch)
    sys.stdout.write(f"a job of 8 ranks: {least:.2f} s of processor time\n")
    missed = False
    for series in SERIES:
        if only not in series.what:
            continue
        spent = [max(0.01, one - least) for one in costs(series.shapes, scratch)]
        found = exponent(series.sizes, spent)
        missed |= found > GOAL
        figures = ", ".join(
            f"{size:,}: {one:.2f} s" for size, one in zip(series.sizes, spent, strict=True)
        )
        sys.stdout.write(f"{series.what}: exponent {found:.2f} ({figures})\n")
        sys.stdout.flush()
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
