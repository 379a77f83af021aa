"""Draws wrong journals and shrinks what goes wrong: ``make fuzz``, or

PYTHONPATH=.:viewer:tests python -m fuzz --cases 20000 [--check otlp] [--seed N]
"""

from __future__ import annotations

import random
import resource
import sys
import tempfile
import time
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import seed as seeded

from fuzz.checks import CHECKS, quiet_environment
from fuzz.mutations import CHANGES, Change, write
from support.campaigns import options


def main() -> int:
    chosen = options(__doc__, cases=20_000, check=sorted(CHECKS), seed=random.randrange(1 << 32))
    names = chosen.check
    each = -(-chosen.cases // len(names))
    sys.stdout.write(f"seed {chosen.seed}, {each} cases of each of {len(names)} checks\n")
    failures = 0
    with tempfile.TemporaryDirectory() as scratch, quiet_environment():
        for name in names:
            failures += not _one(name, each, chosen.seed, Path(scratch))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    sys.stdout.write(f"{failures} checks failed; peak memory {peak:,.0f} MB\n")
    return 1 if failures else 0


def _one(name: str, cases: int, seed: int, scratch: Path) -> bool:
    longest = 0.0
    done = 0

    @seeded(seed)
    @settings(
        max_examples=cases, deadline=None, database=None, suppress_health_check=list(HealthCheck)
    )
    @given(CHANGES)
    def check(changes: list[Change]) -> None:
        nonlocal longest, done
        done += 1
        folder = write(scratch, changes)
        started = time.process_time()
        CHECKS[name](folder)
        longest = max(longest, time.process_time() - started)

    try:
        check()
    except BaseException:
        import traceback

        sys.stdout.write(f"{name}: FAILED\n{traceback.format_exc()}\n")
        sys.stdout.flush()
        return False
    sys.stdout.write(f"{name}: {done} cases, the longest {longest:.1f} s of processor time\n")
    sys.stdout.flush()
    return True


if __name__ == "__main__":
    sys.exit(main())
