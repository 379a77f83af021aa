"""How often `disttrace diff` has the changed line on top: drawn programs, each with one change.

    python tests/reliability/differences.py --pairs 20 --seed 1

A program is drawn: what it does before its loop, in each step, and in each n-th step. It runs as it
is, once more so (nothing may differ), and with one line dropped, added, swapped with the next one,
with another size, dtype, reduce op or root, more often, or a rank that comes late to it. Two ranks
on gloo each time, in folders of their own.
"""

from __future__ import annotations

import itertools
import os
import random
import re
import runpy
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

import torch

import disttrace

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from support.campaigns import options
from support.processes import free_port

RANKS, STEPS = 2, 30
CALLS = {
    "all_reduce": "dist.all_reduce(ones({size}, dtype=torch.{dtype}), dist.ReduceOp.{reduce})",
    "broadcast": "dist.broadcast(ones({size}, dtype=torch.{dtype}), {root})",
    "barrier": "dist.barrier()",
    "all_gather": "dist.all_gather([ones({size}) for _ in range(2)], ones({size}))",
    "object": "dist.all_gather_object([None] * 2, 'x' * {size})",
    "message": "exchange(ones({size}, dtype=torch.{dtype}))",
}
TYPED = ("all_reduce", "broadcast", "message")
CHANGES = ("drop", "add", "swap", "size", "dtype", "reduce", "root", "often", "late")
HEAD = """\
import time
import torch
import torch.distributed as dist
from torch import ones


def exchange(tensor):
    if dist.get_rank() == 0:
        dist.send(tensor, 1)
    else:
        dist.recv(tensor, 0)


def late(seconds):
    if dist.get_rank() == 1:
        time.sleep(seconds)


dist.init_process_group("gloo")
"""


@dataclass(frozen=True)
class Line:
    call: str
    size: int
    dtype: str = "float32"
    reduce: str = "SUM"
    root: int = 0
    every: int = 1
    """In each so-many-th step; 0: before the loop."""
    twice: bool = False
    late: bool = False
    number: int = 0

    def source(self) -> list[str]:
        """Its lines, the last of which is the call."""
        call = CALLS[self.call].format(**vars(self)) + f"  # L{self.number}"
        text = [f"for _ in range(2): {call}" if self.twice else call]
        text = ["late(0.02)", *text] if self.late else text
        if self.every < 2:
            return text
        return [f"if step % {self.every} == 0:", *(f"    {one}" for one in text)]


def source(lines: list[Line], blank: int) -> str:
    """The program, with some empty lines on top."""
    before = [text for one in lines if one.every == 0 for text in one.source()]
    inside = [f"    {text}" for one in lines if one.every for text in one.source()]
    loop = ["def train(step):", *inside, "", f"for step in range({STEPS}):", "    train(step)"]
    return "\n" * blank + HEAD + "\n".join([*before, *loop, "dist.destroy_process_group()", ""])


def drawn(dice: random.Random) -> list[Line]:
    everies = [0, 0, *[1] * dice.randint(3, 6), dice.choice((3, 5, 10))]
    return [
        Line(dice.choice(list(CALLS)), dice.choice((4, 64, 1000)), every=every, number=number)
        for number, every in enumerate(everies)
    ]


def changed(lines: list[Line], change: str, dice: random.Random) -> tuple[list[Line], set[int]]:
    """The program with one change, and the numbers of the lines that it is about."""
    fits: dict[str, Callable[[Line], Any]] = {
        "dtype": lambda one: one.call in TYPED, "reduce": lambda one: one.call == "all_reduce",
        "root": lambda one: one.call == "broadcast", "size": lambda one: one.call != "barrier",
        "late": lambda one: one.every == 1 and one.call != "message",
    }  # fmt: skip
    fit = fits.get(change)
    places = [i for i, one in enumerate(lines) if fit is None or fit(one)]
    if change == "swap":
        places = [
            i
            for i in range(len(lines) - 1)
            if lines[i].every == lines[i + 1].every and lines[i].call != lines[i + 1].call
        ]
    if not places:
        return changed(lines, "drop", dice)
    i = dice.choice(places)
    one, after = lines[i], lines[i + 1 :]
    if change == "drop":
        # Of equal neighbours nobody can tell which one is gone.
        runs = itertools.groupby(lines, key=lambda other: replace(other, number=0))
        alike = next(run for _, found in runs if one in (run := [*found]))
        return [*lines[:i], *after], {other.number for other in alike}
    if change == "add":
        new = Line(dice.choice(list(CALLS)), 16, every=one.every, number=90)
        return [*lines[:i], new, *lines[i:]], {90}
    if change == "swap":
        return [*lines[:i], after[0], one, *after[1:]], {one.number, after[0].number}
    other = {
        "size": replace(one, size=one.size * 3), "dtype": replace(one, dtype="float64"),
        "reduce": replace(one, reduce="MAX"), "root": replace(one, root=1),
        "often": replace(one, twice=True), "late": replace(one, late=True),
    }[change]  # fmt: skip
    return [*lines[:i], other, *after], {one.number}


def run(folder: Path, text: str) -> None:
    """The program, traced into ``folder``, in ranks forked from here: torch is loaded once."""
    folder.mkdir(parents=True)
    program = folder / "train.py"
    program.write_text(text)
    port = free_port()
    ranks = [os.fork() or rank_of(program, rank, port) for rank in range(RANKS)]
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in ranks]
    if any(codes):
        raise RuntimeError(f"{codes} of\n{text}")


def rank_of(program: Path, rank: int, port: int) -> NoReturn:
    """One rank, whose process ends here."""
    signal.alarm(60)
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(RANKS)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo"}
    code = 1
    try:
        with disttrace.trace(program.parent / "out", quiet=True):
            runpy.run_path(str(program), run_name="__main__")
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def numbers(told: str, texts: tuple[str, str]) -> set[int]:
    """The numbers of the program's lines that a difference names: of A, of B, or of both."""
    found = set()
    for part, lines in zip(told.split(" in A"), map(str.splitlines, texts), strict=False):
        for line in re.findall(r"train\.py:(\d+)", part):
            marked = re.search(r"# L(\d+)", lines[int(line) - 1] if int(line) <= len(lines) else "")
            if marked:
                found.add(int(marked[1]))
    return found


def main() -> int:
    """Draw pairs, and count; 0 where 95 % have the line on top and no equal pair differs."""
    chosen = options(__doc__, pairs=20, seed=1)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        pairs = []
        for number in range(chosen.pairs):
            dice = random.Random(f"{chosen.seed}/{number}")
            lines, change = drawn(dice), CHANGES[number % len(CHANGES)]
            other, about = changed(lines, change, dice)
            texts = source(lines, 0), source(other, dice.randint(0, 20))
            runs = [Path(folder) / f"{number}{name}" for name in "asb"]
            for where, text in zip(runs, (texts[0], texts[0], texts[1]), strict=True):
                run(where, text)
            pairs.append((change, about, texts, [where / "out" for where in runs]))
        return judged(pairs)  # no rank is forked where Polars has threads


def judged(pairs: list[tuple[str, set[int], tuple[str, str], list[Path]]]) -> int:
    """Say of each pair what was on top, and count."""
    right = loud = 0
    for number, (change, about, texts, (a, same, b)) in enumerate(pairs):
        found, nothing = disttrace.diff(a, b), disttrace.diff(a, same)
        # A call that became slower is told in B's lines alone.
        top = found.differences[0].summary if found.differences else "nothing"
        named = top if "first divergence" in top else f" in A{top.replace(' in A', '')}"
        hit = bool(numbers(named, texts) & about)
        right += hit
        loud += not nothing.alike
        print(f"{number:3} {change:7} {'right' if hit else 'WRONG'}: {top}")
        if not hit:
            print(f"lines {sorted(about)}\n{found}\n{texts[0]}\n{texts[1]}")
        if not nothing.alike:
            print(f"    equal runs differ: {nothing}")
    print(f"{right} of {len(pairs)} on top; {loud} of {len(pairs)} equal pairs differ")
    return int(right < 0.95 * len(pairs) or loud > 0)


if __name__ == "__main__":
    sys.exit(main())
