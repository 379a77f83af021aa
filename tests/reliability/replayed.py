"""Runs faults, replays their journals, shrunk, and says how many hang in the same way.

python tests/reliability/replayed.py --jobs 3        all rows of the table, three at a time
python tests/reliability/replayed.py --one-each      the first row of each number
python tests/reliability/replayed.py --match ring --program
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPOSITORY / "tests"))

from faults.expectation import Row  # noqa: E402
from faults.harness import _journals, run_row  # noqa: E402
from faults.table import ROWS  # noqa: E402

MOST_CALLS = 10
_NO_ERROR = "no fault was found in this job"
_SAID = re.compile(r"Replayed ([\d,]+) calls? of (\d+) ranks?: (.*)\.")


def chosen(options: argparse.Namespace) -> Iterator[Row]:
    """The rows of faults that the options select."""
    seen: set[int] = set()
    for row in ROWS:
        if row.number == 0 or row.needs or options.match not in row.name:
            continue
        if options.one_each and row.number in seen:
            continue
        seen.add(row.number)
        yield row


def replay(row: Row, *, program: bool) -> tuple[bool, int, str]:
    """Whether a row's journals hang in the same way, with how many calls, and what was said."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run_row(row, folder)
        command = [sys.executable, "-m", "disttrace", "replay", str(_journals(row, folder))]
        if program:
            subprocess.run([*command, "--shrink", "-o", "/dev/stdout"], check=False)
        try:
            done = subprocess.run(
                [*command, "--shrink"], capture_output=True, text=True, check=False, timeout=300
            )
        except subprocess.TimeoutExpired:
            return False, 0, "not over after 300 s"
    said = _SAID.search(done.stdout)
    if said is None:
        output = done.stderr.strip() or done.stdout.strip() or f"exit code {done.returncode}"
        return False, 0, output.splitlines()[-1]
    return done.returncode == 0, int(said[1]), done.stdout.strip().splitlines()[-1]


def main() -> None:
    """Print a line for each row, and the sums."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--match", default="", help="only rows whose name has this in it")
    parser.add_argument("--one-each", action="store_true")
    parser.add_argument("--program", action="store_true", help="print the programs too")
    parser.add_argument("--jobs", type=int, default=1, help="rows at a time")
    options = parser.parse_args()
    rows = list(chosen(options))
    same = short = count = well = 0
    with ThreadPoolExecutor(options.jobs) as pool:
        results = pool.map(lambda row: replay(row, program=options.program), rows)
        for row, (right, calls, said) in zip(rows, results, strict=True):
            if _NO_ERROR in said:
                well += 1
                print(f"none  {row.number:3} {row.name}", flush=True)
                continue
            count, same, short = count + 1, same + right, short + (right and calls <= MOST_CALLS)
            print(f"{'same ' if right else 'OTHER'} {row.number:3} {row.name}: {said}", flush=True)
    print(
        f"{same} of {count} hang in the same way, {short} of these with at most {MOST_CALLS} calls;"
        f" {well} more had no error in their journals (late ranks)"
    )


if __name__ == "__main__":
    main()
