"""How soon slow ranks are reported, how rightly, and how often a healthy one is.

    python tests/reliability/slow_ranks.py --trials 100 --hours 10000
    python tests/reliability/slow_ranks.py --record device --out tests/reliability/noise/device.json

64 ranks (one or four on each of 64 hosts) take steps of ``--step`` seconds with three collectives.
How long each computes before one is a fixed part of the step times the noise of one rank of a
recorded healthy run; which rank is slow, before which collective and from which step on, is drawn.

* One rank, or one host, takes a tenth more of a step: after how many steps is it reported, and are
  rank, line and share (within two points of that over 300 steps) right?
* All are well, or what they do differs (``LENGTHS``): how many are reported in so many hours?
* One rank makes the others wait half of the time: after how many seconds is it reported?

``--record`` runs a healthy job (``device``: four ranks that mostly wait, as for a device; ``cpu``:
two that compute) and writes the noise of this machine.
"""

from __future__ import annotations

import json
import math
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from disttrace_viewer.companion.follower import Follower, records
from disttrace_viewer.companion.slow import AFTER_S
from disttrace_viewer.companion.slow_ranks import (
    Block,
    Blocks,
    Notice,
    Released,
    SlowRanks,
    Sums,
    Telling,
)

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from support.campaigns import options

NOISE = Path(__file__).with_name("noise")
PLACES = ("aa1", "bb2", "cc3")
PARTS = (0.30, 0.55, 0.10)
"""Of a step before each place; the rest is transfers."""
SHARE, SLOWER = 0.05, 0.10
WARM, MOST = 60, 300
AROUND = 10
"""Steps before the change, and after it."""
STEP = """
import sys, time, torch, torch.distributed as dist
torch.set_num_threads(1)
dist.init_process_group("gloo")
matrix, gradient = torch.randn(128, 128), torch.ones(1000)
def work(parts):
    for _ in range(10 if sys.argv[1] == "device" else 700 * parts):
        matrix @ matrix
    if sys.argv[1] == "device":
        time.sleep(0.08 * parts)
for _ in range(int(sys.argv[2])):
    work(1)
    dist.all_reduce(gradient)
    work(2)
    dist.all_reduce(gradient)
    work(1)
    dist.barrier()
dist.destroy_process_group()
"""


def record(kind: str, steps: int) -> dict[str, Any]:
    """What the ranks of a healthy job were away before each place, in thousandths."""
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder, "steps.py")
        program.write_text(STEP, encoding="utf-8")
        out = Path(folder, "out")
        ranks = 4 if kind == "device" else 2
        command = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={ranks}"]
        subprocess.run(
            [*command, "--standalone", str(program), kind, str(steps)],
            env={**os.environ, "DISTTRACE": "1", "DISTTRACE_DIR": str(out)},
            check=True,
        )
        load = os.getloadavg()
        return {"kind": kind, "load": load, "cores": os.cpu_count(), **read(out)}


def read(folder: Path) -> dict[str, Any]:
    ranks: list[dict[str, list[int]]] = []
    for path in sorted(folder.glob("*.defs.jsonl")):
        follower = Follower(str(folder), path.name.removesuffix(".defs.jsonl"), {})
        follower.definitions.read()
        if follower.definitions.rank is None:
            continue
        ranks.append({})
        for part in sorted(folder.glob(f"{follower.base}.*.ops.jsonl")):
            lines = part.read_bytes().rstrip(b"\0").splitlines()
            for held in follower.holds.take(records(lines)):
                if held.place:
                    ranks[-1].setdefault(held.place, []).append(held.away)
    step_ms = [round(sum(np.median(times) for times in one.values()) / 1e6) for one in ranks]
    series = []
    for place in ranks[0]:
        times = np.array([one[place][20:] for one in ranks], dtype=float)
        for n in range(times.shape[1]):
            around = times[:, max(0, n - AROUND) : n + AROUND + 1]
            series.append(times[:, n] / np.median(around))
    count = len(series) // len(ranks[0])
    rows = np.array(series).reshape(len(ranks[0]), count, len(ranks)).transpose(0, 2, 1)
    whole = np.rint(1000 * rows.reshape(-1, count)).astype(int)
    return {"step_ms": step_ms, "series": whole.tolist()}


class World:
    """Simulated ranks, ``per_host`` on each host."""

    def __init__(self, noise: list[list[int]], draw: random.Random, size: int, step: float) -> None:
        self.size, self.step = size, step
        self._noise = [np.array(one) / 1000 for one in noise]
        self._draw = draw
        self._at = time.time()

    def away(self, steps: int) -> Any:
        """Seconds, by step, rank and place."""
        found = np.empty((steps, self.size, len(PLACES)))
        for rank in range(self.size):
            for place, part in enumerate(PARTS):
                one = self._noise[self._draw.randrange(len(self._noise))]
                start = self._draw.randrange(len(one))
                found[:, rank, place] = (
                    part * self.step * np.take(one, range(start, start + steps), mode="wrap")
                )
        return found

    def blocks(self, away: Any, first: int) -> Iterator[tuple[float, list[Block]]]:
        """The blocks of each step, and when it ends; all are released when the last one came."""
        transfer = (1 - sum(PARTS)) * self.step / len(PLACES)
        inside = away.max(axis=1, keepdims=True) - away + transfer
        spans = (away[:, 0] + inside[:, 0]).sum(axis=1)
        out, held = (away * 1e9).astype(int).tolist(), (inside * 1e9).astype(int).tolist()
        for n in range(len(out)):
            self._at += spans[n]
            span = int(spans[n] * 1e9)
            yield (
                self._at,
                [
                    Block(
                        "feed", 0, first + n, rank, self.size, span,
                        {p: Sums(1, a, i) for p, a, i in zip(PLACES, out[n][rank], held[n][rank])},
                    )
                    for rank in range(self.size)
                ],
            )  # fmt: skip


def trial(
    world: World, culprits: list[int], place: int, per_host: int
) -> tuple[int, Notice | None, float]:
    """Steps until somebody is told, what, and the true share, over all steps after the change."""
    ranks, telling = SlowRanks(SHARE), Telling(SHARE)
    hosts = {rank: str(rank // per_host) for rank in range(world.size)}
    away = world.away(WARM + MOST)
    away[WARM:, culprits, place] += SLOWER * world.step
    after = away[WARM:]
    spans = after.max(axis=1).sum(axis=1) + (1 - sum(PARTS)) * world.step
    late = after[:, culprits] - np.median(after, axis=1, keepdims=True)
    true = float(late.mean(axis=1).sum() / spans.sum())
    for n, (now, blocks) in enumerate(world.blocks(away, 0)):
        ranks.add(blocks, now)
        for told in telling.due(ranks.slow(), hosts, ranks.leaning, now):
            return n + 1 - WARM, told, true
    return MOST, None, 0.0


def trials(noise: list[list[int]], count: int, seed: int, step: float, per_host: int) -> bool:
    """A line of the table; whether it is as it should be."""
    draw = random.Random(seed)
    steps, named, line, share = [], 0, 0, 0
    for _ in range(count):
        world = World(noise, draw, 64 * per_host, step)
        host, place = draw.randrange(64), draw.randrange(2)
        culprits = [*range(host * per_host, (host + 1) * per_host)]
        took, told, true = trial(world, culprits, place, per_host)
        steps.append(took)
        if told is not None:
            named += [one.rank for one in told.slow] == culprits
            line += told.slow[0].place == PLACES[place]
            said = statistics.mean(one.share for one in told.slow)
            share += abs(said - true) <= 0.02
    soon = sum(0 < one <= 30 for one in steps)
    print(
        f"  {'one rank of 64' if per_host == 1 else 'one host of 64'}: told within 30 steps in "
        f"{soon} of {count} (median {statistics.median(steps):.0f}, most {max(steps)}); right: "
        f"who {named}, line {line}, share {share}"
    )
    return min(soon, named, line, share) >= 0.95 * count


def healthy(noise: list[list[int]], hours: float, seed: int, step: float) -> int:
    """How many are told of 64 ranks that are well, in so many rank hours."""
    world = World(noise, random.Random(seed), 64, step)
    ranks, telling = SlowRanks(SHARE), Telling(SHARE)
    told, n = 0, 0
    while ranks.rank_hours < hours:
        for now, blocks in world.blocks(world.away(500), n):
            ranks.add(blocks, now)
            told += len(telling.due(ranks.slow(), {}, ranks.leaning, now))
        n += 500
    print(f"  all are well: {told} told in {ranks.rank_hours:,.0f} rank hours ({n:,} steps)")
    return told


LENGTHS = ("uniform", "packed", "lognormal", "turns", "experts")
BETWEEN_S = 2.0


def lengths(kind: str, draw: Any, steps: int, size: int, first: int) -> Any:
    """How many times as long each rank takes in each step."""
    if kind == "uniform":
        return draw.uniform(1, 4, (steps, size))
    if kind == "packed":
        return np.where(draw.random((steps, size)) < 0.85, 1.0, 4.0)
    if kind == "lognormal":
        return np.clip(np.exp(draw.normal(0, 0.5, (steps, size))), 0.5, 2.0)
    if kind == "turns":
        found = np.ones((steps, size))
        found[np.arange(steps), (np.arange(steps) + first) % size] = 4.0
        return found
    return np.tile(np.linspace(1, 4, size), (steps, 1))  # experts


def unlike(noise: list[list[int]], hours: float, seed: int, step: float) -> int:
    """How many are told of ranks that are well while what they do differs."""
    told = 0
    for kind in LENGTHS:
        for size in (2, 4, 8, 64):
            draw = np.random.default_rng(seed)
            world = World(noise, random.Random(seed), size, step / 2)
            ranks, telling, n, here = SlowRanks(SHARE), Telling(SHARE), 0, 0
            while ranks.rank_hours < hours / len(LENGTHS) / 4:
                times = lengths(kind, draw, 500, size, n)
                for now, blocks in world.blocks(world.away(500) * times[:, :, None], n):
                    if kind == "experts":
                        sizes = [int(1e6 * share) for share in times[0]]
                        blocks = [
                            replace(one, places={p: s._replace(bytes=sizes[one.rank])
                                                 for p, s in one.places.items()})
                            for one in blocks
                        ]  # fmt: skip
                    ranks.add(blocks, now)
                    found = telling.due(ranks.slow(), {}, ranks.leaning, now)
                    here += sum(not one.over for one in found)
                n += 500
            print(f"  {kind}, {size} ranks: {here} told in {ranks.rank_hours:,.0f} rank hours")
            told += here
    return told


def half(noise: list[list[int]], seed: int) -> float:
    """The most seconds from the begin of a rank that makes others wait half of the time."""
    most = 0.0
    for size in (2, 4, 8, 64):
        for step in (0.05, 0.2, 0.7)[: 2 if size == 2 else 3]:
            for warm in (0.0, 120.0):
                world = World(noise, random.Random(seed), size, step)
                took = _until_told(world, round(warm / step), warm)
                print(f"  {size} ranks, steps of {step} s, after {warm:g} s: told in {took:.1f} s")
                most = max(most, took)
    return most


def _until_told(world: World, warm: int, since: float) -> float:
    """Seconds, of which ``AFTER_S`` are those in which nothing is read at the start of a job."""
    away = world.away(warm + round(100 / world.step))
    away[warm:, 1, 0] += world.step
    shifts: dict[str, int] = {}
    cut = [Blocks("feed", rank, world.size, shifts, world=world.size) for rank in range(world.size)]
    ranks, begun, at, seq = SlowRanks(SHARE), 0.0, 0.0, 0
    for n in range(len(away)):
        begun = at if n == warm else begun
        for place in range(len(PLACES)):
            longest = away[n, :, place].max()
            at, seq = at + longest + 0.05 * world.step / len(PLACES), seq + 1
            if at < AFTER_S:
                continue
            found = []
            for rank, one in enumerate(cut):
                mine = away[n, rank, place]
                times = (int(mine * 1e9), int((longest - mine) * 1e9), int(at * 1e9))
                block = one.add(Released(1, seq, PLACES[place], *times))
                found += [] if block is None else [block]
            ranks.add(found, at)
            if n >= warm and any(one.rank == 1 for one in ranks.slow()):
                return float(at - begun + BETWEEN_S)
    return math.inf


def main() -> int:
    """A table for each noise; 1 where one is not as it should be."""
    args = options(
        __doc__, noise=[str(NOISE / "device.json")], trials=40, hours=1000.0, unlike=1000.0,
        step=2.0, seed=1, record=str, steps=400, read=Path, out=Path,
    )  # fmt: skip
    if args.record:
        found = read(args.read) if args.read else record(args.record, args.steps)
        args.out.write_text(json.dumps(found) + "\n", encoding="utf-8")
        return 0
    good = True
    for path in args.noise:
        noise = json.loads(Path(path).read_text(encoding="utf-8"))["series"]
        print(f"{path}")
        if args.trials:
            good &= trials(noise, args.trials, args.seed, args.step, 1)
            good &= trials(noise, max(1, args.trials // 4), args.seed, args.step, 4)
        if args.hours:
            good &= healthy(noise, args.hours, args.seed, args.step) <= args.hours / 10_000
        if args.unlike:
            good &= unlike(noise, args.unlike, args.seed, args.step) == 0
            good &= half(noise, args.seed) <= 25.0
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
