"""What C++ costs where noise is least: a small DDP step, and an all_reduce beside it, of one rank.

python benchmarks/steps/one_rank.py     CPU microseconds of the main thread, least of five series
DISTTRACE=1 DISTTRACE_DIR=... python benchmarks/steps/one_rank.py    the same, traced

Each is a process of its own; start them in turns, and compare.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[0:1] = [str(ROOT), str(ROOT / "tests")]

from benchmarks.steps.training import SMALL, training  # noqa: E402

_SERIES = 5
_STEPS = 500


def main() -> int:
    """Measure and print both."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=0, world_size=1)
        step = training(SMALL, dist.group.WORLD)
        tensor = torch.ones(1)
        print(f"a step of small DDP: {_least(step, _STEPS):.0f} us")
        print(f"all_reduce beside it: {_least(lambda: dist.all_reduce(tensor), 4 * _STEPS):.1f} us")
        dist.destroy_process_group()
    return 0


def _least(call: Callable[[], object], count: int) -> float:
    found = []
    for _ in range(_SERIES):
        before = time.thread_time_ns()
        for _ in range(count):
            call()
        found.append((time.thread_time_ns() - before) / count / 1e3)
    return min(found)


if __name__ == "__main__":
    raise SystemExit(main())
