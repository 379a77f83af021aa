"""Compares `disttrace diagnose` with PyTorch's Flight Recorder analyzer on one workload.

    python -m benchmarks.viewer.bench_diagnose --operations 1000000 --theirs 1000000

Both get the same collectives of the same ranks, each in its own format (journals; pickled dumps as
`torchfrtrace` reads them), healthy or with a rank that stops one collective early. Counted is the
time of the whole command, start of the interpreter and reading included, and peak memory; and
beside it what is left without the start: less the time of the same command on a job of ten
collectives each. Both find their modules compiled, as where they are installed. The analyzer
takes about 5 GiB for a million, and its rate falls with length.
"""

from __future__ import annotations

import argparse
import os
import pickle
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT)]

from benchmarks.viewer.jobs import Run, Shape, make  # noqa: E402

SHAPES = tuple([n * 64] for n in range(1, 9))
STACK = tuple((f"/project/layer{n}.py", 10 + n, f"forward{n}") for n in range(8))
"""The user's frames, as deep as disttrace keeps them."""
TORCH = tuple((f"/site-packages/torch/nn/module{n}.py", 100 + n, "_call_impl") for n in range(8))
"""What the flight recorder keeps besides; it writes all frames out in every entry."""
LIMIT_S = 600


@dataclass(frozen=True, slots=True)
class Workload:
    """All-reduces of a default group; the last rank leaves out the last one if ``missing``."""

    operations: int
    ranks: int = 4
    missing: bool = True
    parallel: bool = False
    """Steps of a job with tensor, data and pipeline groups instead: collectives in four groups of
    each rank, and messages.
    """

    @property
    def shape(self) -> Shape:
        """The job with groups."""
        steps = max(2, self.operations // self.ranks // 20)
        return Shape(2, self.ranks // 4, 2, steps, fault="tp" if self.missing else None)

    def of(self, rank: int) -> int:
        """How many a rank makes."""
        each = self.operations // self.ranks
        return each - 1 if self.missing and rank == self.ranks - 1 else each

    def returned(self, number: int) -> bool:
        """Whether the collective of that number (from 1) ends."""
        return number <= self.of(self.ranks - 1)


def write_journals(folder: Path, work: Workload) -> None:
    """The workload as disttrace records it."""
    if work.parallel:
        make(folder, work.shape)
        return
    from support.journals import MS, workers

    last_t = 0
    for journal in workers(folder, work.ranks):
        group = journal.world()
        stack = journal.stack(*STACK)
        calls = [journal.collective(group, shapes=[s], bytes=4 * s[0], stack=stack) for s in SHAPES]
        lines = []
        for number in range(1, work.of(journal.rank or 0) + 1):
            t = 10 * MS + number * 90_000 + (journal.rank or 0) * 700
            call = calls[number % len(calls)]
            lines.append(f'{{"b":{number},"t":{t},"s":{call},"q":{number}}}\n')
            if work.returned(number):
                lines.append(f'{{"e":{number},"d":{50_000 + number % 977},"u":9000}}\n')
            last_t = max(last_t, t)
        if work.missing:
            lines += [f'{{"hb":{last_t + beat * 2000 * MS}}}\n' for beat in range(1, 8)]
        with journal.segments[-1].open("a") as file:
            file.writelines(lines)
        if not work.missing:
            journal.define("exit", t=last_t + MS, how="normal", code=0)


def write_dumps(folder: Path, work: Workload) -> None:
    """The workload as ProcessGroupNCCL's flight recorder dumps it (format 2.10)."""
    folder.mkdir(parents=True)
    if work.parallel:
        _write_parallel(folder, work.shape)
        return
    members = str(list(range(work.ranks)))
    for rank in range(work.ranks):
        numbers = range(1, work.of(rank) + 1)
        entries = [_call(number, number, done=work.returned(number)) for number in numbers]
        dump = {
            "version": "2.10",
            "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": members}},
            "pg_status": {},
            "entries": entries,
        }
        with (folder / f"trace_{rank}").open("wb") as file:
            pickle.dump(dump, file)


def _write_parallel(folder: Path, shape: Shape) -> None:
    run = Run.of(shape, fault=shape.fault is not None)
    kinds = {
        "dp_scatter": "dp",
        "dp_gather": "dp",
        "msg": "pp",
    }  # messages are named by ranks of a group
    for rank in range(shape.size):
        groups = {shape.groups[group][0]: group for group, _ in shape.member[rank]}
        seq: dict[str, int] = {}
        entries: list[dict[str, Any]] = []
        for place, what in enumerate(run.plan):
            if not np.isfinite(run.begins[place, rank]):
                break
            kind, message = kinds.get(what, what), what == "msg"
            group = groups[kind]
            number = seq[what if message else kind] = seq.get(what if message else kind, 0) + 1
            entry = _call(len(entries) + 1, number, done=bool(np.isfinite(run.ends[place, rank])))
            entry["pg_id"] = group
            entry["process_group"] = (str(group), "default_pg" if kind == "world" else kind)
            if message:
                first = rank < shape.size // 2
                entry["is_p2p"] = True
                entry["profiling_name"] = "nccl:send 0->1" if first else "nccl:recv 1<-0"
                entry["collective_seq_id"], entry["p2p_seq_id"] = 0, number
            entries.append(entry)
        config = {
            str(group): {"name": str(group), "desc": kind, "ranks": str(shape.groups[group][1])}
            for kind, group in groups.items()
        }
        config["0"]["desc"] = "default_pg"
        dump = {"version": "2.10", "pg_config": config, "pg_status": {}, "entries": entries}
        with (folder / f"trace_{rank}").open("wb") as file:
            pickle.dump(dump, file)


def _call(record: int, number: int, *, done: bool) -> dict[str, Any]:
    shape = SHAPES[number % len(SHAPES)]
    began = 1_700_000_000_000_000_000 + record * 90_000
    return {
        "record_id": record - 1,
        "pg_id": 0,
        "process_group": ("0", "default_pg"),
        "collective_seq_id": number,
        "p2p_seq_id": 0,
        "op_id": record,
        "profiling_name": "nccl:all_reduce",
        "time_created_ns": began,
        "input_sizes": [shape],
        "input_dtypes": ["Float"],
        "output_sizes": [shape],
        "output_dtypes": ["Float"],
        "state": "completed" if done else "scheduled",
        "time_discovered_started_ns": began + 9_000 if done else None,
        "time_discovered_completed_ns": began + 50_000 if done else None,
        "retired": done,
        "timeout_ms": 600_000,
        "is_p2p": False,
        "frames": [{"name": f, "filename": file, "line": line} for file, line, f in TORCH + STACK],
    }


@dataclass(frozen=True, slots=True)
class Cost:
    """What a command took."""

    operations: int
    cpu_s: float
    wall_s: float
    peak_mib: float
    output: str

    @property
    def rate(self) -> float:
        """Operations per second, from the start of the command to its end."""
        return self.operations / self.wall_s


Tool = Callable[[Path, Workload, Mapping[str, str]], Cost]


def measure(
    command: Sequence[str], operations: int, environment: Mapping[str, str] | None = None
) -> Cost:
    """Run a command to its end; its exit code is its own affair."""
    began = time.perf_counter()
    with tempfile.TemporaryFile("w+") as said:
        process = subprocess.Popen(
            command, stdout=said, stderr=subprocess.STDOUT, cwd=ROOT, env=environment
        )
        try:
            _, _, usage = os.wait4(process.pid, 0)
        except BaseException:
            process.kill()
            raise
        wall = time.perf_counter() - began
        said.seek(0)
        output = said.read()
    return Cost(operations, usage.ru_utime + usage.ru_stime, wall, usage.ru_maxrss / 1024, output)


def compiled(folder: Path) -> dict[str, str]:
    """The environment in which modules are compiled once, into a folder."""
    kept = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, "PYTHONPYCACHEPREFIX": str(folder)}


def ours(folder: Path, work: Workload, environment: Mapping[str, str] | None = None) -> Cost:
    """``disttrace diagnose`` on journals of the workload."""
    write_journals(folder, work)
    command = [sys.executable, "-m", "disttrace", "diagnose", str(folder), "--json"]
    return measure(["timeout", str(LIMIT_S), *command], work.operations, environment)


def theirs(folder: Path, work: Workload, environment: Mapping[str, str] | None = None) -> Cost:
    """``torchfrtrace`` on dumps of the workload."""
    write_dumps(folder, work)
    command = [sys.executable, "-m", "torch.distributed.flight_recorder.fr_trace", str(folder)]
    command += ["--prefix", "trace_"]
    return measure(["timeout", str(LIMIT_S), *command], work.operations, environment)


def main() -> None:
    """Print one line per tool and how often ours is the faster."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--operations", type=int, default=1_000_000, help="for disttrace")
    parser.add_argument("--theirs", type=int, default=1_000_000, help="for the analyzer; 0: none")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--healthy", action="store_true", help="nobody is missing")
    parser.add_argument("--parallel", action="store_true", help="a job with groups and messages")
    parser.add_argument("--say", action="store_true", help="also what the commands write")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        folder = Path(name)
        environment = compiled(folder / "compiled")

        def both(tool: str, run: Tool, operations: int) -> tuple[Cost, float]:
            rest = (chosen.ranks, not chosen.healthy, chosen.parallel)
            small = Workload(10 * chosen.ranks, *rest)
            run(folder / f"{tool} first", small, environment)  # compiles
            least = run(folder / f"{tool} small", small, environment)
            work = Workload(operations, *rest)
            found = run(folder / tool, work, environment)
            if chosen.say:
                print(found.output[-3000:])
            _say(tool, found, found.cpu_s - least.cpu_s)
            return found, found.cpu_s - least.cpu_s

        mine, own = both("disttrace diagnose", ours, chosen.operations)
        if not chosen.theirs:
            return
        other, their_own = both("torchfrtrace", theirs, chosen.theirs)
        each = mine.operations / other.operations
        print(
            f"per operation torchfrtrace takes {each * other.cpu_s / mine.cpu_s:.1f} times the"
            f" processor time, {each * their_own / own:.1f} times without the start"
        )


def _say(name: str, cost: Cost, own_s: float) -> None:
    print(
        f"{name:<20} {cost.operations:>10,} operations  {cost.cpu_s:6.2f} s CPU"
        f" ({own_s:.2f} s without the start)"
        f"  {cost.wall_s:6.2f} s wall  {cost.peak_mib:6.0f} MiB  {cost.rate:>10,.0f}/s"
    )


if __name__ == "__main__":
    main()
