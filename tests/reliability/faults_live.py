"""Runs the hangs of the fault table and waits for the verdict on the job's own stderr.

python tests/reliability/faults_live.py                    all hangs, with the default limit
python tests/reliability/faults_live.py --stall 3 --rows 2,4 --jobs 2
python tests/reliability/faults_live.py --apart            with a folder per rank
python tests/reliability/faults_live.py --write docs/live.md

Nobody runs a command: the program is started with DISTTRACE=1 and nothing else. What is said must
be what `diagnose` says of the same journals at that moment, which the table judges. Time counts
from when the last rank that will come began to wait.
"""

from __future__ import annotations

import argparse
import re
import statistics
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPOSITORY / "tests"))

from faults.expectation import NODES, Row  # noqa: E402
from faults.harness import diagnose, started  # noqa: E402
from faults.judge import judge  # noqa: E402
from faults.table import ROWS  # noqa: E402

STALLED = re.compile(r"disttrace: stalled( \(likely\))?: ")
MAY_BE = "may be missing there"
"""Said where the journal of whoever is missing is out of reach: who waits, and no accusation."""
LONGEST_S = 60.0


@dataclass(frozen=True, slots=True)
class Told:
    """What a program's stderr said of its hang, and when."""

    row: Row
    summary: str | None
    lines: int
    seconds: float | None
    problems: tuple[str, ...]


def live(row: Row, folder: Path, stall_s: float, *, apart: bool) -> Told:
    """One row: until its stderr tells, or for a minute beyond the limit."""
    variables = {} if stall_s == 10 else {"DISTTRACE_STALL": f"{stall_s:g}"}
    stderr = folder / "stderr"
    with started(row, folder, variables, apart=apart) as process:
        deadline = time.monotonic() + LONGEST_S + stall_s
        at = 0
        while time.monotonic() < deadline and process.poll() is None:
            at = time.time_ns()
            if STALLED.search(stderr.read_text(errors="replace")):
                break
            time.sleep(0.1)
        time.sleep(0.3)  # the rest of the lines
        text = stderr.read_text(errors="replace")
        report, code, _ = diagnose(folder / "journals")
    said = [line for line in text.splitlines() if line.startswith("disttrace: ")]
    summary = next((STALLED.sub("", line) for line in said if STALLED.match(line)), None)
    if summary is None or report is None:
        return Told(row, summary, len(said), None, ("nothing was said",))
    problems = list(judge(row, report, code))
    first = report["findings"][0]["summary"] if report["findings"] else ""
    if _plain(summary) != _plain(first) and not (apart and MAY_BE in summary):
        problems.append(f"said: {summary} diagnose says: {first}")
    waiting = {one for found in report["findings"] for one in found["waiting"]}
    begins = [
        p["last"]["begin_ns"] for p in report["processes"] if p["id"] in waiting and p["last"]
    ]
    seconds = (at - max(begins)) / 1e9 if begins else None
    return Told(row, summary, len(said), seconds, tuple(problems))


def _plain(sentence: str) -> str:
    """Without what differs from moment to moment: ages, and the line of a loop that was sampled."""
    return re.sub(r"[\d.,]+ (ns|µs|ms|s|min|h)\b|(?<=\.py):\d+", "", sentence)


def page(told: list[Told], stall_s: float) -> list[str]:
    """The table, with a line of figures."""
    times = sorted(one.seconds for one in told if one.seconds is not None)
    right = sum(not one.problems for one in told)
    figures = "no times"
    if times:
        median, worst = statistics.median(times), times[-1]
        figures = f"median {median:.1f} s, worst {worst:.1f} s after the last rank began to wait"
    less = sum(MAY_BE in (one.summary or "") for one in told)
    if less:
        figures += f"; {less} of them name who waits only, since a journal is out of reach"
    lines = [
        f"{right} of {len(told)} hangs told rightly on stderr (limit {stall_s:g} s): {figures}.",
        "",
        "| program | said after | lines | what |",
        "|---|---|---|---|",
    ]
    for one in told:
        seconds = "-" if one.seconds is None else f"{one.seconds:.1f} s"
        what = one.summary if not one.problems else f"WRONG {'; '.join(one.problems)}"
        lines.append(f"| `{one.row.name}` | {seconds} | {one.lines} | {what} |")
    return lines


def main() -> int:
    """Run them; exit code 1 if anything was said wrongly, or not at all."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", default="", help="numbers in the list of faults")
    parser.add_argument("--match", default="", help="only rows whose name contains this")
    parser.add_argument("--stall", type=float, default=10.0)
    parser.add_argument("--jobs", type=int, default=1, help="rows at once")
    parser.add_argument(
        "--apart", action="store_true", help="a folder per rank, as on hosts that share none"
    )
    parser.add_argument("--write", type=Path, help="the page to write")
    options = parser.parse_args()
    numbers = {int(one) for one in options.rows.split(",") if one}
    rows = [
        row
        for row in ROWS
        if row.ends == "hang"
        and row.number
        and row.needs is None
        and not row.clocks
        and (not numbers or row.number in numbers)
        and options.match in row.name
        and not (options.apart and row.launcher == NODES)
    ]

    def run(row: Row) -> Told:
        with tempfile.TemporaryDirectory(prefix="disttrace-live-") as folder:
            return live(row, Path(folder), options.stall, apart=options.apart)

    told = []
    with ThreadPoolExecutor(options.jobs) as pool:
        for one in pool.map(run, rows):
            told.append(one)
            print(page([one], options.stall)[-1], flush=True)
    lines = page(told, options.stall)
    print(lines[0])
    if options.write:
        head = "# Verdicts on stderr\n\nGenerated by `make faults-live` from real runs.\n\n"
        options.write.write_text(head + "\n".join(lines) + "\n")
    return 0 if all(not one.problems for one in told) else 1


if __name__ == "__main__":
    raise SystemExit(main())
