"""Runs drawn programs of which one rank does something else once, and healthy ones.

python tests/reliability/diverged.py --runs 18 --seed 1      mutations, in turn
python tests/reliability/diverged.py --healthy --seconds 30  programs that are told of nothing
    --operations 1000000     again and again, until so many are begun
    --kinds accelerated      others than those that torch alone can run
    --world 2                ranks

Of each mutation stderr has to say ``diverged`` within two seconds after the second rank came to the
step in which it is, once, and to blame nobody else. (Inputs that are not finite: ``faults.drawn``.)
"""

from __future__ import annotations

import random
import re
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from reliability.diverged_programs import HEALTHY, MUTATIONS
from support.campaigns import options
from support.processes import static, torchrun
from support.raw import verdicts

PROGRAMS = Path(__file__).with_name("diverged_programs.py")
WITHIN_S = 2.0


@dataclass(frozen=True, slots=True)
class Ran:
    said: list[dict[str, object]]
    """Objects of the kind ``diverged``."""
    mutated_at: list[float]
    operations: int
    aborted: bool
    """gloo itself ended the program, at the first tensor that does not fit."""
    code: int
    stderr: str


def run(world: int, *arguments: str, seconds: float = 0.0) -> Ran:
    """One program, to its end or for two minutes beyond ``seconds``."""
    with tempfile.TemporaryDirectory(prefix="disttrace-diverged-") as folder:
        ended = torchrun(
            PROGRAMS, world, *arguments, timeout=120 + seconds, options=static(), DISTTRACE="1",
            DISTTRACE_DIR=f"{folder}/out", DISTTRACE_STALL="4", DISTTRACE_ON_STALL="abort",
        )  # fmt: skip
        files = Path(folder, "out").glob("*.ops.jsonl")
        begun = sum(path.read_bytes().count(b'\n{"b":') for path in files)
        stamps = [float(at) for at in re.findall(r"MUTATED (\d+\.\d+)", ended.stderr)]
        said = [one for one in verdicts(Path(folder)) if one["kind"] == "diverged"]
        aborted = "EnforceNotMet" in ended.stderr
        return Ran(said, sorted(stamps), begun, aborted, ended.code, ended.stderr)


def mutations(runs: int, seed: int) -> bool:
    """Whether each was told in time, once, and of nobody else."""
    right = aborted = 0
    for number in range(runs):
        draw = random.Random(seed * 1000 + number)
        name = MUTATIONS[number % len(MUTATIONS)]
        world = draw.choice([2, 3, 3, 4])
        odd = draw.randrange(world)
        at = draw.choice([3, 20, 60])
        ran = run(world, name, "7", str(draw.randrange(1000)), str(odd), str(at))
        first = next(iter(ran.said), None)
        after = None if first is None else float(str(first["at"])) - ran.mutated_at[1]
        blamed = {rank for one in ran.said for rank in one["culprit_ranks"]}  # type: ignore[attr-defined]
        fine = after is not None and after <= WITHIN_S and blamed <= {odd}
        right += fine
        if ran.aborted and not fine:
            aborted += 1
            print(f"--  {name}: gloo ended the program before anybody could speak")
            continue
        told = "nothing" if first is None else f"{after:.1f} s: {str(first['summary'])[:150]}"
        print(f"{'ok ' if fine else 'BAD'} {name}, rank {odd} of {world}, step {at}: {told}")
    lived = runs - aborted
    print(f"{right} of {lived} mutations were told in {WITHIN_S:g} s and blamed on nobody else;")
    print(f"{aborted} more were aborted by gloo at once.")
    return right == lived


def healthy(kinds: Sequence[str], world: int, seconds: float, most: int) -> bool:
    """Whether none of them is told of anything, all once, and again until ``most`` operations."""
    operations = told = 0
    while True:
        for name in kinds:
            ran = run(world, name, f"{seconds:g}", seconds=seconds)
            operations += ran.operations
            said = [one["summary"] for one in ran.said]
            told += len(said)
            ended = "" if ran.code == 0 else f", exit code {ran.code}: {ran.stderr[-400:]}"
            print(f"{name}: {ran.operations:,} operations, {said}{ended}", flush=True)
        if operations >= most:
            break
    print(f"{told} divergences told in {operations:,} operations of healthy programs.")
    return not told


def main() -> int:
    chosen = options(
        __doc__, runs=len(MUTATIONS), seed=1, healthy=False, seconds=20.0, operations=0,
        kinds=[*HEALTHY], world=3,
    )  # fmt: skip
    if chosen.healthy:
        fine = healthy(chosen.kinds, chosen.world, chosen.seconds, chosen.operations)
    else:
        fine = mutations(chosen.runs, chosen.seed)
    return 0 if fine else 1


if __name__ == "__main__":
    raise SystemExit(main())
