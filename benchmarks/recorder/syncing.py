"""What it takes to have a segment written to the disk, and the next store into it.

    python benchmarks/recorder/syncing.py [FOLDER]

Each round puts a hundred lines, and times one store, `fdatasync`, and the store after it.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable

from disttrace.journal.segment import MappedSegment

ROUNDS, LINES = 200, 100
LINE = b'{"b":123456,"t":123456789,"s":12,"q":1234}\n'


def main(folder: str | None) -> None:
    """Print medians, 99th percentiles and maxima in microseconds."""
    with tempfile.TemporaryDirectory(dir=folder) as where:
        segment = MappedSegment(os.path.join(where, "segment"), limit=10**9)

        def put() -> None:
            try:
                segment.put(LINE)
            except ValueError:
                segment.extend(len(LINE))
                segment.put(LINE)

        def sync() -> None:
            os.fdatasync(segment.file.checked())

        steps: list[tuple[str, Callable[[], None]]] = [
            ("a store", put),
            ("fdatasync", sync),
            ("the next store", put),
        ]
        times: list[list[float]] = [[] for _ in steps]
        for _ in range(ROUNDS):
            for _ in range(LINES):
                put()
            for (_, step), took in zip(steps, times, strict=True):
                begun = time.perf_counter_ns()
                step()
                took.append((time.perf_counter_ns() - begun) / 1e3)
        segment.close()
    for (name, _), took in zip(steps, times, strict=True):
        took.sort()
        shown = (took[ROUNDS // 2], took[ROUNDS * 99 // 100], took[-1])
        print(f"{name:15}", *(f"{value:10.1f}" for value in shown))


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else None)
