"""Drawn jobs, judged in every way that there is, on hosts whose clocks are apart: one verdict.

    python tests/reliability/judged.py [JOBS]

Counts the jobs whose findings differ between the ways, and those where another kind or another
culprit is found. Exit code 1 if there is any.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from disttrace_viewer.analysis.liveness import UNKNOWN

sys.path.insert(0, str(Path(__file__).parents[1]))

from support.journals import S
from viewer.findings.test_drawn import APART_S, blamed, job, ways


def main(jobs: int) -> int:
    bad = 0
    for apart_s in (None, *APART_S):
        differ, others = 0, []
        for seed in range(jobs):
            with tempfile.TemporaryDirectory() as folder:
                job(Path(folder), seed, "a", None if apart_s is None else round(apart_s * S))
                found = ways(Path(folder), lambda _: UNKNOWN)
            sent = blamed(found.pop("sent"))
            first = found["table"]
            differ += any(one != first for one in found.values()) or sent != blamed(first)
            whom = [[(told[0], told[3]) for told in one] for one in (*found.values(), sent)]
            if any(one != whom[0] for one in whom):
                others.append(seed)
        apart = "one host" if apart_s is None else f"two hosts, {apart_s} s apart"
        sys.stdout.write(f"{apart}: {differ} of {jobs} differ, {len(others)} in whom {others}\n")
        sys.stdout.flush()
        bad += differ
    return int(bad > 0)


if __name__ == "__main__":
    raise SystemExit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 200))
