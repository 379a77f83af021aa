"""Draws programs of which one rank does something else once, and healthy ones, for ``check``.

python tests/reliability/rehearsed.py --runs 24 --seed 1

Each is rehearsed as ``disttrace check -n N -- program.py``. Of a mutation the exit code has to be 1
and nobody innocent may be named; a healthy program has to end with 0. Of the faults 95 % are to be
found.
"""

from __future__ import annotations

import json
import os
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from support.campaigns import options
from support.processes import clean_environ, run_program

MUTATIONS = (
    *("skip", "swallow", "repeat", "swap", "size", "dtype", "reduce"),
    *("tag", "root", "peer", "group", "key"),
)
NEEDS = {
    **dict.fromkeys(("size", "dtype", "reduce", "skip", "swallow", "repeat"), "reduce_grads"),
    "tag": "ring", "peer": "ring", "root": "parameters", "group": "halves", "key": "meet",
}  # fmt: skip
"""The call that a mutation is of."""

PROGRAM = """
import sys
import torch
import torch.distributed as dist

dist.init_process_group("nccl")
rank, world = dist.get_rank(), dist.get_world_size()
pairs = [dist.new_group([n, (n + 1) % world]) for n in range(0, world - 1, 2)]
wide = dist.new_group(list(range(world)))
store = dist.distributed_c10d._get_default_store()

def reduce_grads(step, size=64, dtype=torch.float32, op=dist.ReduceOp.SUM):
    dist.all_reduce(torch.ones(size, dtype=dtype), op=op)

def norm(step):
    dist.all_reduce(torch.ones(1))

def parameters(step, src=0):
    dist.broadcast(torch.ones(16), src)

def gathered(step):
    dist.all_gather([torch.empty(4) for _ in range(world)], torch.ones(4))

def to_first(step):
    dist.reduce(torch.ones(8), 0)

def halves(step, group=None):
    if group is None:
        group = wide
    dist.all_reduce(torch.ones(8), group=group)

def ring(step, tag=0, ahead=1):
    if rank % 2 == 0 and rank + 1 < world:
        dist.send(torch.ones(8), (rank + ahead) % world, tag=tag)
    elif rank % 2:
        dist.recv(torch.ones(8), rank - 1)

def meet(step, key="ready"):
    store.set(f"{key}/{step}/{rank}", "1")
    for other in range(world):
        store.get(f"ready/{step}/{other}")

def everybody(step):
    dist.barrier()

"""


def drawn(name: str | None, draw: random.Random, world: int) -> tuple[str, int]:
    """A program with a mutation, or a healthy one, and the rank that does something else."""
    body = draw.choices(
        ["norm", "parameters", "gathered", "to_first", "halves", "ring", "meet"],
        k=draw.randrange(2, 6),
    )
    needed = NEEDS.get(name or "", "reduce_grads")
    body.insert(draw.randrange(len(body) + 1), needed)
    steps = draw.randrange(4, 9)
    # Of a swap the two calls have to differ, of one of messages there has to be a sender.
    odd = draw.randrange(world)
    if name in ("tag", "peer"):
        odd = draw.choice([r for r in range(world - 1) if r % 2 == 0])
    at = draw.randrange(1, steps)
    lines = [PROGRAM, f"for step in range({steps}):"]
    for place, call in enumerate(body):
        usual = f"{call}(step)"
        if call != needed or name is None or place != body.index(needed):
            lines.append(f"    {usual}")
            continue
        other = {
            "skip": "pass",
            "swallow": "\n        try:\n            raise ValueError('bad batch')\n"
            "        except ValueError:\n            pass",
            "repeat": f"{usual}; {usual}",
            "size": "reduce_grads(step, size=32)",
            "dtype": "reduce_grads(step, dtype=torch.float64)",
            "reduce": "reduce_grads(step, op=dist.ReduceOp.MAX)",
            "tag": "ring(step, tag=7)",
            "peer": "ring(step, ahead=world - 1)",
            "root": "parameters(step, src=1)",
            "group": "halves(step, group=dist.group.WORLD)",
            "key": "meet(step, key='raedy')",
            "swap": "everybody(step); reduce_grads(step)",
        }[name]
        if name == "swap":
            usual = "reduce_grads(step); everybody(step)"
        lines += [f"    if rank == {odd} and step == {at}: {other}", f"    else: {usual}"]
    return "\n".join([*lines, "everybody(0)", "dist.destroy_process_group()", ""]), odd


def rehearsed(text: str, world: int, folder: Path) -> tuple[int, dict[str, Any], float]:
    """Exit code, report, and seconds."""
    program = folder / "program.py"
    program.write_text(text)
    command = [sys.executable, "-m", "disttrace", "check", "-n", str(world), "--format", "json"]
    began = time.monotonic()
    command += ["--timeout", "120", "--", str(program)]
    done = run_program(command, clean_environ(OMP_NUM_THREADS="1"), 400, cwd=folder)
    took = time.monotonic() - began
    try:
        report = json.loads(done.stdout)
    except ValueError:
        report = {"findings": [], "said": done.stderr[-400:]}
    return done.code, report, took


def main() -> int:
    """1 below 95 % of the faults, or with anybody blamed or alarmed wrongly."""
    chosen = options(__doc__, runs=24, healthy=6, seed=1, world=int, keep=Path)
    found = wrong = 0
    names = [MUTATIONS[n % len(MUTATIONS)] for n in range(chosen.runs)]
    for number, name in enumerate([*names, *[None] * chosen.healthy]):
        draw = random.Random(chosen.seed * 1000 + number)
        # Of two ranks each has one other: a message cannot go to the wrong one.
        world = chosen.world or draw.choice([3, 3, 4] if name == "peer" else [2, 3, 3, 4])
        text, odd = drawn(name, draw, world)
        with tempfile.TemporaryDirectory(prefix="disttrace-rehearsed-") as folder:
            code, report, took = rehearsed(text, world, Path(folder))
        bad = [one for one in report["findings"] if one["severity"] != "note"]
        named = {rank for one in bad for rank in one["culprit_ranks"]}
        right = code == (name is not None)
        innocent = named - {odd} if name else named
        found += right and name is not None
        wrong += bool(innocent) or (name is None and not right)
        kinds = [one["kind"] for one in bad]
        mark = "wrong" if innocent or not right else "right"
        load = os.getloadavg()[0]
        print(
            f"{mark}: {name or 'healthy'}, {world} ranks, odd {odd}: exit {code}, {kinds}, named"
            f" {sorted(named)} in {took:.0f} s (load {load:.0f})",
            flush=True,
        )
        if mark == "wrong" and chosen.keep:
            print(report.get("said") or "\n".join(one["summary"] for one in bad), flush=True)
            Path(chosen.keep, f"rehearsed-{chosen.seed}-{number}.py").write_text(text)
    print(f"{found} of {chosen.runs} faults found, {wrong} wrong")
    return found < 0.95 * chosen.runs or wrong > 0


if __name__ == "__main__":
    sys.exit(main())
