"""How long it takes to read, match and export a job, and how much memory it needs.

    python benchmarks/viewer/bench_load.py [--operations 1000000] [--ranks 8] [--export]

Journals are generated in a temporary folder, without torch. The figures of a fresh process each:
processor seconds for reading (journals to one aligned table), for matching collectives and
messages, for the export as JSON lines, and the peak of its resident memory.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "viewer"), str(ROOT / "tests")]

MEASURED = """
import json, resource, sys, time
sys.path[:0] = {path!r}
start = time.process_time()
from disttrace_viewer.analysis.exchanges import Exchanges
from disttrace_viewer.merge.reader import load
from disttrace_viewer.views import jsonl
imported = time.process_time()
trace = load([{folder!r}])
read = time.process_time()
exchanges = Exchanges(trace)
collectives, messages = exchanges.collectives.height, exchanges.messages.height
matched = time.process_time()
size = sum(map(len, jsonl.lines(trace))) if {export!r} else None
print(json.dumps({{
    "operations": trace.operations.height, "collectives": collectives, "messages": messages,
    "problems": len(trace.problems),
    "import_s": imported - start, "read_s": read - imported, "match_s": matched - read,
    "export_s": time.process_time() - matched if size else None, "export_bytes": size,
    "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3,
}}))
"""


def main() -> int:
    """Generate, measure in a process of its own, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--operations", type=int, default=1_000_000)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--asynchronous", action="store_true")
    parser.add_argument("--export", action="store_true")
    parser.add_argument("--timeout", type=float, default=600.0)
    options = parser.parse_args()

    from support.journals import bulk

    with tempfile.TemporaryDirectory() as folder:
        where = Path(folder)
        bulk(where, options.operations, options.ranks, asynchronous=options.asynchronous)
        megabytes = sum(p.stat().st_size for p in where.iterdir()) / 1e6
        program = MEASURED.format(path=sys.path[:3], folder=folder, export=options.export)
        done = subprocess.run(
            [sys.executable, "-c", program],
            capture_output=True,
            text=True,
            timeout=options.timeout,
            check=False,
        )
    if done.returncode:
        print(done.stderr, file=sys.stderr)
        return 1
    figures = json.loads(done.stdout)
    print(f"{'journals':>14}: {megabytes:,.0f} MB")
    for name, value in figures.items():
        if value is not None:
            print(
                f"{name:>14}: {value:,.2f}"
                if isinstance(value, float)
                else f"{name:>14}: {value:,}"
            )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
