"""How far what-if is from what is: programs with a drawn delay, predicted without it, and run so.

    python tests/reliability/what_if.py --rounds 5 --seed 1

Each round draws a kind of program, a rank and a delay, runs it traced with the delay and without,
and compares the seconds that its steps took without it with those predicted from the trace of the
delayed run (its steps less what `stats --what-if rank=N` saves), and whether the line is the first
of those that are named. A loaded machine shows here: the run without is made twice, and how far
these two are apart is printed beside (`noise`). What the machine alone makes of the rank is left
out of the prediction too, and is in the run without: so much is printed as `own`, by the same
question to that run's trace, and an error is what is left beyond it.
"""

from __future__ import annotations

import random
import sys
import tempfile
from pathlib import Path

import disttrace

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from support.campaigns import options
from support.processes import torchrun

PROGRAM = Path(__file__).with_name("delayed_steps.py")
KINDS = ("ddp", "pipeline", "tp", "moe")
STEPS, RANKS = 60, 4


def run(kind: str, rank: int, milliseconds: int, folder: Path) -> float:
    """The seconds that the steps took, traced into ``folder``."""
    words = (kind, str(STEPS), str(rank), str(milliseconds))
    done = torchrun(
        PROGRAM, RANKS, *words, timeout=300, DISTTRACE="1", DISTTRACE_DIR=str(folder)
    ).check()
    return float(done.stdout.split()[-1])


def held_line(kind: str, rank: int) -> str:
    """Before which line the delay is: the rank's next call after ``loader`` in the function."""
    lines = PROGRAM.read_text(encoding="utf-8").splitlines()
    start = next(n for n, line in enumerate(lines) if line.startswith(f"def {kind}("))
    loader = next(n for n in range(start, len(lines)) if "loader(held" in lines[n])
    # The last stage of the pipeline sends nothing on: its next call is that of the next round.
    again = kind == "pipeline" and rank == RANKS - 1
    calls = ("dist.", ".backward(", "model(")
    first = next(n for n in range(start, loader) if "recv" in lines[n]) if again else loader
    after = next(n for n in range(first, len(lines)) if any(call in lines[n] for call in calls))
    return f"{PROGRAM.name}:{after + 1}"


def main() -> int:
    """A row for each round; 1 where a prediction or a line is wrong in more than one of twenty."""
    args = options(__doc__, rounds=8, seed=1)
    draw = random.Random(args.seed)
    print("kind      rank   ms   delayed   predicted   without   error     own   noise   line")
    wrong = 0
    for number in range(args.rounds):
        kind, rank = KINDS[number % len(KINDS)], draw.randrange(RANKS)
        milliseconds = draw.randrange(30, 180)
        with tempfile.TemporaryDirectory() as folder:
            delayed = run(kind, rank, milliseconds, Path(folder, "delayed"))
            plain = [run(kind, -1, 0, Path(folder, f"plain{n}")) for n in (0, 1)]
            undelayed = [disttrace.stats(Path(folder, f"plain{n}")) for n in (0, 1)]
            saved = [one.without(f"rank={rank}")["saved_ns"] / 1e9 for one in undelayed]
            stats = disttrace.stats(Path(folder, "delayed"))
            predicted = delayed - stats.without(f"rank={rank}")["saved_ns"] / 1e9
            lines = [one["line"] for one in stats.what_if["without"].to_list() if one["line"]]
        without = sum(plain) / 2
        own = sum(saved) / 2 / without
        error = predicted / without - 1 + own
        named = bool(lines) and lines[0].endswith(held_line(kind, rank))
        wrong += abs(error) > 0.05 or not named
        noise = abs(plain[0] - plain[1]) / without
        print(
            f"{kind:9} {rank:4} {milliseconds:4} {delayed:9.3f} {predicted:11.3f} {without:9.3f}"
            f" {error:+7.1%} {own:7.1%} {noise:7.1%}   {'yes' if named else lines}",
            flush=True,
        )
    print(f"{args.rounds - wrong} of {args.rounds} within 5 % and with the line named first")
    return int(wrong > args.rounds / 20)


if __name__ == "__main__":
    sys.exit(main())
