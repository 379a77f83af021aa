"""Runs programs with the watch and without, and compares what a person sees of them.

python tests/reliability/watched.py                     slow but healthy ones, and faults that end
python tests/reliability/watched.py --kill --seed 1     with its companions killed at random
python tests/reliability/watched.py --match slow_steps --seconds 30

The program's stdout, exit code and exceptions must be those of a run without disttrace (of which
there are two: some programs end in more ways than one). A healthy one is told at most once to
stall, and then to go on. Afterwards no process and no file of the watch is left.
"""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from faults.expectation import Row
from faults.harness import started
from faults.table import ROWS
from reliability.outcomes import Facts, differences, exceptions, normal
from support.campaigns import beside, options
from support.processes import companions

LONGEST_S = 150.0
LEFT_S = 15.0
WAYS = ((False, True), (True, True), (True, False))
"""How they are started: torchrun or not, and that with ``--standalone`` or without."""


@dataclass(frozen=True, slots=True)
class Watched:
    """A program that was run: how often it was told to stall, and what differs."""

    row: Row
    notes: int
    wrong: tuple[str, ...]


def slow(seconds: float) -> list[Row]:
    """The healthy programs that others wait for, started in each way."""
    whats = ("checkpoint", "compile", "loader", "listener", "watcher")
    return [
        Row(number=0, program=f"healthy/slow_steps.py --what {what} --seconds {seconds:g}",
            ends="ends", torchrun=torchrun, standalone=standalone)
        for what in whats
        for torchrun, standalone in WAYS
    ]  # fmt: skip


def seen(row: Row, folder: Path, variables: dict[str, str], kills: random.Random | None) -> Facts:
    """What a person sees of one run; what disttrace said is ``own words``."""
    with started(row, folder, variables) as process:
        over = threading.Event()
        if kills is not None:
            threading.Thread(target=_kill, args=(folder, kills, over), daemon=True).start()
        try:
            process.wait(LONGEST_S)
        except subprocess.TimeoutExpired:
            return {"exit code": f"none after {LONGEST_S:g} s"}
        finally:
            over.set()
    stderr = (folder / "stderr").read_text(errors="replace")
    lines = (folder / "stdout").read_text(errors="replace").splitlines()
    found = {
        "exit code": str(process.returncode),
        "stdout": " / ".join(sorted(filter(None, map(normal, lines)))),
        "own words": "\n".join(x for x in stderr.splitlines() if x.startswith("disttrace: ")),
    }
    for rank, errors in exceptions(stderr).items():
        found[f"exceptions of rank {rank}"] = " / ".join(sorted(errors))
    return found


def _kill(folder: Path, kills: random.Random, over: threading.Event) -> None:
    """Each companion, and each of their children, some time after it came."""
    while not over.wait(kills.uniform(0.0, 1.5)):
        for pid in companions(folder):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue


def judged(row: Row, folder: Path, stall_s: float, kills: random.Random | None) -> Watched:
    """A run with the watch beside those without."""
    before = []
    for number in range(1 if row.number == 0 else 2):
        bare = folder / f"bare{number}"
        bare.mkdir()
        before.append(seen(row, bare, {"DISTTRACE": "0"}, None))
    traced = folder / "traced"
    traced.mkdir()
    variables = {"DISTTRACE_STALL": f"{stall_s:g}", "DISTTRACE_QUIET": "1"}
    now = dict(seen(row, traced, variables, kills))
    said = now.get("own words", "")
    now["own words"] = ""
    wrong = differences(now, before)
    stalls = len(re.findall(r"^disttrace: stalled", said, re.MULTILINE))
    ends = len(re.findall(r"^disttrace: going on: ", said, re.MULTILINE))
    if row.number == 0 and (stalls > 1 or (stalls != ends and kills is None)):
        wrong.append(f"told {stalls} times to stall, {ends} times to go on: {said}")
    until = time.monotonic() + LEFT_S
    while (left := companions(traced)) and time.monotonic() < until:
        time.sleep(0.5)
    if left:
        wrong.append(f"{len(left)} processes are left")
    files = [p.name for p in (traced / "journals").rglob("*") if p.suffix not in (".jsonl", "")]
    if files and kills is None:
        wrong.append(f"files are left: {files}")
    return Watched(row, stalls, tuple(wrong))


def main() -> int:
    """Run them; exit code 1 if anything differs."""
    chosen = options(__doc__, match="", stall=3.0, seconds=8.0, jobs=2, kill=False, seed=1)
    ending = [row for row in ROWS if row.ends == "ends" and row.number and row.needs is None]
    rows = [row for row in slow(chosen.seconds) + ending if chosen.match in row.name]

    def run(numbered: tuple[int, Row]) -> Watched:
        number, row = numbered
        kills = random.Random(chosen.seed + number) if chosen.kill else None
        with tempfile.TemporaryDirectory(prefix="disttrace-watched-") as folder:
            return judged(row, Path(folder), chosen.stall, kills)

    right = 0
    for one in beside(run, enumerate(rows), chosen.jobs):
        right += not one.wrong
        told = "; ".join(one.wrong) or "as without the watch"
        print(f"{one.row.name}: {one.notes} notes; {told}", flush=True)
    print(f"{right} of {len(rows)} programs are as without the watch.")
    return 0 if right == len(rows) else 1


if __name__ == "__main__":
    raise SystemExit(main())
