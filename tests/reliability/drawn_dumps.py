"""Dumps of drawn jobs with a drawn fault, cut as people's are, and what is said of them.

PYTHONPATH=viewer:tests python tests/reliability/drawn_dumps.py [--draws N] [--seed N] [--only N]

Jobs of 4 to 16 ranks on devices (``support/simulated_dumps.py``), in the forms of torch 2.5.1, 2.8,
2.13 and 2.15, on NCCL and gloo. Then a node or a file is missing, the files' times are lost, in
whole seconds or those of a copy, rings are short, or of active entries only. Wrong is who is named
and innocent, exit code 0, and "all have joined" where that is not so; right is who is named, and
undecided what names nobody.
"""

from __future__ import annotations

import os
import random
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(REPOSITORY / "tests"), str(REPOSITORY / "viewer")]

from support.campaigns import RIGHT, UNDECIDED, WRONG, counted, options  # noqa: E402
from support.flight_dumps import CREATED_NS, write  # noqa: E402
from support.simulated_dumps import (  # noqa: E402
    DEFAULT,
    PAIRS,
    Call,
    Fault,
    dumped,
    run,
)

VERSIONS = {"2.5.1": "2.4", "2.8": "2.9", "2.13": "2.10", "2.15": "2.10"}
KINDS = ("missing", "missing", "left out", "other", "stuck", "unseen", "network")
OPS = ("all_reduce", "_allgather_base", "_reduce_scatter_base", "alltoall_base", "broadcast")


def groups_of(world: int, drawn: random.Random) -> dict[str, tuple[int, ...]]:
    """All ranks; rows and columns of a mesh."""
    rows = drawn.choice([n for n in (2, 4) if n < world])
    found = {DEFAULT: tuple(range(world)), PAIRS: tuple(range(world))}
    meshes = [tuple(range(at, at + rows)) for at in range(0, world, rows)]
    meshes += [tuple(range(at, world, rows)) for at in range(rows)]
    return found | {str(number): ranks for number, ranks in enumerate(meshes, 2)}


def programs_of(
    world: int, groups: dict[str, tuple[int, ...]], drawn: random.Random
) -> list[list[Call]]:
    """The same step some times, as every rank sees it."""
    step: list[str] = [drawn.choice(("rows", "columns", "all", "pairs")) for _ in range(9)]
    ops = [drawn.choice(OPS) for _ in step]
    reads = [drawn.random() < 0.15 for _ in step]
    programs: list[list[Call]] = []
    for rank in range(world):
        own = [name for name, ranks in groups.items() if rank in ranks and int(name) > 1]
        calls = []
        for kind, op, read in zip(step, ops, reads, strict=True):
            if kind == "pairs":
                peer = rank ^ 1
                both = ("send", "recv") if rank < peer else ("recv", "send")
                calls.append(Call(PAIRS, "", tuple((one, peer) for one in both), read))
            else:
                name = DEFAULT if kind == "all" else own[kind == "columns"]
                calls.append(Call(name, op, reads=read, size=64))
        calls[-1] = Call(DEFAULT, "all_reduce", reads=True)
        programs.append([replace(call, line=n) for n, call in enumerate(calls, 10)] * 4)
    return programs


def times(folder: Path, how: str, drawn: random.Random, newest_ns: int) -> None:
    """Give the files the times that ``how`` says."""
    second = 1_000_000_000
    for number, path in enumerate(sorted(folder.iterdir())):
        late_ns = drawn.randrange(2 * second)
        at_ns = {
            "kept": newest_ns + 180 * second + late_ns,
            "soon": newest_ns + 3 * second + late_ns // 2,
            "lost": newest_ns + 10**7 * second + late_ns,
            "seconds": (newest_ns // second + 200) * second,
            "copied": newest_ns + 300 * second + number * 400_000,
        }[how]
        os.utime(path, ns=(at_ns, at_ns))


def draw(number: int, seed: int) -> tuple[str, str]:
    """What came of one draw, and what it was."""
    from disttrace_viewer.api.verdict import diagnose

    drawn = random.Random(f"{seed} {number}")
    world = drawn.choice((4, 8, 16))
    groups = groups_of(world, drawn)
    programs = programs_of(world, groups, drawn)
    torch = drawn.choice(list(VERSIONS))
    backend = "gloo" if torch in ("2.13", "2.15") and drawn.random() < 0.3 else "nccl"
    kind = drawn.choice(KINDS[:4] if backend == "gloo" else KINDS)
    who = tuple(sorted(drawn.sample(range(world), drawn.choice((1, 1, 2)) if world > 4 else 1)))
    fault = Fault(kind, who, drawn.randrange(9, 27))
    if kind in ("left out", "other"):
        who = (who[0],)
        fault = Fault(kind, who, fault.at)
    ranks = run(programs, groups, fault)
    active = backend == "nccl" and drawn.random() < 0.4
    ring = drawn.choice((2_000, 2_000, 12))
    left = list(range(world))
    cut = drawn.choice(("whole", "whole", "node", "file"))
    if cut == "node":
        left = left[: world // 2] if drawn.random() < 0.5 else left[world // 2 :]
    elif cut == "file":
        left.remove(drawn.choice(left))
    form = drawn.choice(("pickle", "json"))
    how = drawn.choice(("kept", "kept", "soon", "lost", "seconds", "copied"))
    dumps = {
        r: dumped(ranks[r], groups, version=VERSIONS[torch], backend=backend, active=active,
                  ring=ring)
        for r in left
    }  # fmt: skip
    text = f"{number}: torch {torch} {backend}, {kind} {who} at {fault.at} of {world}, {cut}, times"
    text += f" {how}, {form}, ring {ring}{', active only' * active}"
    with tempfile.TemporaryDirectory() as made:
        folder = write(Path(made) / "dumps", dumps, form=form)
        newest = max((i.at_s for one in ranks for i in one.issued), default=0.0)
        times(folder, how, drawn, CREATED_NS + round(newest * 1e9))
        report = diagnose(folder)
        bad = [found for found in report.findings if found.severity != "note"]
        named = {rank for found in bad for rank in found.culprit_ranks}
        told = [f"{found.severity} {found.summary}" for found in bad]
        guilty = set() if kind == "network" else set(who)
        wrong = [f"blames {sorted(named - guilty)}"] * bool(named - guilty)
        if report.healthy and not report.incomplete:
            wrong.append("exit 0")
        if kind not in ("network", "stuck", "unseen") and any(
            found.summary.startswith("All members have joined") and found.kind == "no_progress"
            and "may differ" not in found.summary
            for found in bad
        ):  # fmt: skip
            wrong.append("all have joined")
    if wrong:
        return WRONG, f"{text}: {', '.join(wrong)}\n      " + "\n      ".join(told)
    good = bool(named) if guilty else bool(bad)
    return (RIGHT if good else UNDECIDED), text + "".join(f"\n      {one}" for one in told)


def main() -> int:
    """1 if anything was said wrongly."""
    chosen = options(__doc__, draws=150, seed=1, only=[int], verbose=False)
    numbers = chosen.only or range(chosen.draws)
    return counted(lambda number: draw(number, chosen.seed), numbers, verbose=chosen.verbose)


if __name__ == "__main__":
    sys.exit(main())
