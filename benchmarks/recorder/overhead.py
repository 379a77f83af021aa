"""What tracing costs, beside other tracers: ratios within one run, interleaved, medians.

python benchmarks/recorder/overhead.py  everything (about eight minutes on two cores)
python benchmarks/recorder/overhead.py --quick  a look (about two minutes)
python benchmarks/recorder/overhead.py --parts fake,stores
python benchmarks/recorder/overhead.py --write  and put each part into docs/dev/benchmarks.md
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import time
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# Not this folder itself: its modules have names that others may want.
sys.path[0:1] = [str(ROOT), str(ROOT / "viewer"), str(ROOT / "tests")]

from benchmarks.recorder import (  # noqa: E402
    journal_bytes,
    one_process,
    peak_memory,
    segment_lines,
    startup_time,
    store_operations,
    two_processes,
)
from benchmarks.recorder.scale import FULL, QUICK, Scale  # noqa: E402
from benchmarks.report import Report, document, replaced  # noqa: E402

PAGE = ROOT / "docs" / "dev" / "benchmarks.md"
PARTS: Mapping[str, Callable[[Scale], Report]] = {
    "fake": one_process.measure,
    "calls": one_process.measure_calls,
    "stores": store_operations.measure,
    "gloo": two_processes.measure,
    "startup": startup_time.measure,
    "bytes": journal_bytes.measure,
    "memory": peak_memory.measure,
    "segments": segment_lines.measure,
}


def preamble(scale: Scale) -> str:
    """What the figures were taken on; nothing that names the machine."""
    cores = len(os.sched_getaffinity(0))
    return (
        f"Python {platform.python_version()}, torch {version('torch')}, {cores} cores, "
        f"{scale.rounds} rounds ({scale.name} run)."
    )


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="fewer rounds: about two minutes")
    parser.add_argument(
        "--parts", default=",".join(PARTS), help=f"comma list of {', '.join(PARTS)}"
    )
    parser.add_argument("--write", action="store_true", help="put the figures into the docs")
    chosen = parser.parse_args()
    chosen.parts = [name for name in chosen.parts.split(",") if name]
    unknown = [name for name in chosen.parts if name not in PARTS]
    if unknown or not chosen.parts:
        parser.error(f"--parts takes {', '.join(PARTS)}; not {', '.join(unknown) or 'nothing'}")
    return chosen


def main() -> int:
    """Measure part by part, and print what came out."""
    options = arguments()
    scale = QUICK if options.quick else FULL
    for name in options.parts:
        begun = time.monotonic()
        text = document([PARTS[name](scale)], preamble(scale))
        print(f"{name}: {time.monotonic() - begun:.0f} s", file=sys.stderr, flush=True)
        print(text, flush=True)
        if options.write:
            PAGE.write_text(replaced(PAGE.read_text(), text, name))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
