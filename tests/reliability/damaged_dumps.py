"""Damages dumps of the Flight Recorder at random and diagnoses them: none may end in a traceback.

PYTHONPATH=viewer:tests python tests/reliability/damaged_dumps.py --runs 1000
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
import traceback
from pathlib import Path

from disttrace_viewer.diagnosis import job as states
from disttrace_viewer.load.foreign.evidence import evidence
from disttrace_viewer.load.problems import Problems, ViewerError
from support.flight_dumps import dump, entry, write


def main() -> int:
    """1 if any run raised something else than a sentence."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    drawn, bad, sentences, start = random.Random(options.seed), 0, 0, time.monotonic()
    for _ in range(options.runs):
        with tempfile.TemporaryDirectory() as folder:
            where = _drawn(drawn, Path(folder) / "dumps")
            try:
                problems = Problems()
                evidence([str(where)], problems)
                states.judged([str(where)], choose=lambda jobs: [j.id for j in jobs])
            except ViewerError:
                sentences += 1
            except Exception:
                bad += 1
                traceback.print_exc()
    took = time.monotonic() - start
    print(
        f"{options.runs} runs in {took:.0f} s: {bad} tracebacks, {sentences} unreadable as a whole"
    )
    return 1 if bad else 0


def _drawn(drawn: random.Random, where: Path) -> Path:
    """A job of four ranks with some of its bytes wrong, missing or doubled."""
    dumps = {
        rank: dump(
            [entry("all_reduce", n + 1, at_s=n / 10) for n in range(drawn.randrange(6))]
            + [entry(drawn.choice(("send 0->1", "recv 0<-?", "coalesced")), 1, p2p=1)]
            + [entry("all_reduce", 7, at_s=1, state=drawn.choice(("started", "scheduled")))],
            groups={"0": range(4), "1": (0, 1)},
            version=drawn.choice(("2.3", "2.4", "2.7", "2.10")),
            status={"0": (drawn.randrange(9), 3)},
        )
        for rank in range(4)
    }
    write(where, dumps, form=drawn.choice(("pickle", "json")))
    for path in where.iterdir():
        data = bytearray(path.read_bytes())
        for _ in range(drawn.choice((0, 1, 2, 8, 64))):
            place = drawn.randrange(len(data))
            data[place] = drawn.randrange(256)
        if drawn.random() < 0.3:
            del data[drawn.randrange(len(data)) :]
        if drawn.random() < 0.1:
            place = drawn.randrange(len(data) + 1)
            data[place:place] = data[: drawn.randrange(len(data) + 1)]
        path.write_bytes(bytes(data))
    return where


if __name__ == "__main__":
    sys.exit(main())
