"""`torchrun --max-restarts 3` on gloo, plain and traced by turns: do restarts end alike?

    python tests/reliability/restarts.py [--runs 20] [--jobs 2] [--as-torch-does]

In the first attempts a rank raises, is killed, or leaves in the middle of an all_reduce, chosen by
the number of the run, so that both runs of a pair are the same; a later attempt gets through, or
none does. What is compared: the exit code (or that it hung) and the attempts that were begun.
An attempt finds gloo's addresses of the one before in the store, so it hangs or fails by chance,
untraced too. Here each has a prefix of its own; `--as-torch-does` leaves that out, and counts.
"""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1]), str(Path(__file__).resolve().parents[2])]

from support.campaigns import beside, options  # noqa: E402
from support.processes import torchrun  # noqa: E402

PROGRAM = """
import os, signal, sys
import torch, torch.distributed as dist
way, until, own = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "own"
attempt, rank = int(os.environ["TORCHELASTIC_RESTART_COUNT"]), int(os.environ["RANK"])
os.write(1, f"attempt {attempt}\\n".encode())  # at once: of print, `python -u` makes two writes
if own:
    store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
    store = dist.PrefixStore(f"attempt {attempt}", store)
    size = int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
else:
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
LIMIT_S = 150.0


def outcome(number: int, traced: bool, *, own: bool) -> str:
    """How a run ends, and the attempts that it took."""
    way, until = WAYS[number % 3], (1, 2, 4)[number // 3 % 3]
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder, "program.py")
        program.write_text(PROGRAM)
        tracing = {"DISTTRACE": "1", "DISTTRACE_DIR": f"{folder}/out"} if traced else {}
        arguments = (way, str(until), "own" if own else "shared")
        keys = {"options": ("--max-restarts", "3"), "timeout": LIMIT_S, **tracing}
        done = torchrun(program, 3, *arguments, **keys)  # type: ignore[arg-type]
    attempts = Counter(line for line in done.stdout.splitlines() if line.startswith("attempt"))
    ended = "hung" if done.hung else f"exit {done.code}"
    return f"{way} until {until}: {ended}, {len(attempts)} attempts"


def main() -> int:
    """Both outcomes of each pair; 1 where any differ."""
    chosen = options(__doc__, runs=20, jobs=2, as_torch_does=False)
    own = not chosen.as_torch_does
    turns = [(number, traced) for number in range(chosen.runs) for traced in (False, True)]
    differ = 0
    ends: dict[str, Counter[str]] = {"plain": Counter(), "traced": Counter()}
    outcomes = beside(lambda turn: outcome(*turn, own=own), turns, chosen.jobs)
    for number, pair in enumerate(zip(outcomes, outcomes, strict=True)):
        for name, end in zip(ends, pair, strict=True):
            ends[name][end.split(": ")[1].split(",")[0]] += 1
        same = "the same" if pair[0] == pair[1] else pair[1]
        print(f"{number:3}  plain {pair[0]:40}  traced {same}", flush=True)
        differ += pair[0] != pair[1]
    counts = "; ".join(f"{name}: {dict(found)}" for name, found in ends.items())
    print(f"{chosen.runs} pairs, {differ} differ; {counts}")
    return 1 if differ and own else 0


if __name__ == "__main__":
    sys.exit(main())
