"""`torchrun --max-restarts 3` on gloo, plain and traced by turns: do restarts end alike?

    python tests/reliability/restarts.py [--runs 20] [--jobs 2]

In the first attempts a rank raises, is killed, or leaves in the middle of an all_reduce, chosen by
the number of the run, so that both runs of a pair are the same; a later attempt gets through, or
none does. What is compared: the exit code and the attempts that were begun. Untraced runs hang too
now and then (an attempt meets the store's keys of the one before it), so hangs are counted apart.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1]), str(Path(__file__).resolve().parents[2])]

from support.processes import torchrun  # noqa: E402

PROGRAM = """
import os, signal, sys
import torch, torch.distributed as dist
way, until = sys.argv[1], int(sys.argv[2])
attempt, rank = int(os.environ["TORCHELASTIC_RESTART_COUNT"]), int(os.environ["RANK"])
print(f"attempt {attempt}", flush=True)
dist.init_process_group("gloo")
for step in range(20):
    if step == 5 and rank == attempt % 3 and attempt < until:
        if way == "raises":
            raise ValueError("of this attempt")
        if way == "leaves":
            sys.exit(3)
        os.kill(os.getpid(), signal.SIGKILL)
    dist.all_reduce(torch.ones(100))
dist.destroy_process_group()
"""
WAYS = ("raises", "killed", "leaves")
LIMIT_S = 90.0


def outcome(number: int, traced: bool) -> str:
    """How a run ends, and the attempts that it took."""
    way, until = WAYS[number % 3], (1, 2, 4)[number // 3 % 3]
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder, "program.py")
        program.write_text(PROGRAM)
        tracing = {"DISTTRACE": "1", "DISTTRACE_DIR": f"{folder}/out"} if traced else {}
        done = torchrun(
            program, 3, way, str(until), options=("--max-restarts", "3"), timeout=LIMIT_S, **tracing
        )
    attempts = Counter(line for line in done.stdout.splitlines() if line.startswith("attempt"))
    ended = "hung" if done.hung else f"exit {done.code}"
    return f"{way} until {until}: {ended}, {len(attempts)} attempts"


def main() -> int:
    """Both outcomes of each pair; 1 where any differ."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    turns = [(number, traced) for number in range(options.runs) for traced in (False, True)]
    with ThreadPoolExecutor(options.jobs) as pool:
        outcomes = pool.map(lambda turn: outcome(*turn), turns)
        differ, hung = 0, Counter[str]()
        for number, (plain, traced) in enumerate(zip(outcomes, outcomes, strict=True)):
            same = "the same" if plain == traced else traced
            print(f"{number:3}  plain {plain:40}  traced {same}", flush=True)
            hangs = [name for name, end in (("plain", plain), ("traced", traced)) if "hung" in end]
            hung.update(hangs)
            differ += plain != traced and not hangs
    counts = f"{hung['plain']} plain, {hung['traced']} traced"
    print(f"{options.runs} pairs, {differ} end otherwise; hung: {counts}")
    return 1 if differ else 0


if __name__ == "__main__":
    sys.exit(main())
