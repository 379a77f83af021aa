"""What the plain core adds beside another version of disttrace, process by process in turns.

python benchmarks/recorder/beside_version.py               beside 995f57d, whose wrappers were text
                                                           that was compiled (two minutes)
python benchmarks/recorder/beside_version.py --version REVISION --turns 5
python benchmarks/recorder/beside_version.py --write       and put it into docs/dev/benchmarks.md

Two versions cannot be in one process, so the untraced program, that version and this one take
turns. Of each process the fastest of some rounds counts, of the turns the median: the figure is
what a version adds to the untraced program of the same turn.
"""

from __future__ import annotations

import argparse
import io
import json
import statistics
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ROUNDS, CALLS = 8, 2500
TEXT_COMPILED = "995f57d"
GOAL = 1.3
BARE, THAT, THIS = "bare", "that", "this"


def in_child(calls: int) -> dict[str, float]:
    """Nanoseconds of CPU time per operation in this process, traced by whatever it imports."""
    import gc

    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    sys.path.append(str(ROOT))  # behind the tree, of which disttrace is
    from benchmarks.recorder import cases

    if sys.argv[2]:
        import disttrace

        assert Path(disttrace.__file__).parents[1] == Path(sys.argv[4]), "that is another version"
        disttrace.install(dir=sys.argv[2])
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
    store = dist.HashStore()
    measured = [*cases.python_issued(dist.group.WORLD), *cases.messages(1)]
    measured += cases.store_operations(store, store)[:2]
    store.set("step/17", "ready")
    gc.disable()
    taken: dict[str, float] = {}
    for number in range(ROUNDS + 1):  # the first one fills caches
        for case in measured:
            begun = time.thread_time_ns()
            case.loop(calls)
            each = (time.thread_time_ns() - begun) / calls
            if number:
                taken[case.name] = min(taken.get(case.name, each), each)
    if sys.argv[2]:
        begun_in_all = (ROUNDS + 1) * calls * len(measured)
        recorded = sum(path.read_bytes().count(b'\n{"b":') for path in Path(sys.argv[2]).iterdir())
        assert recorded >= begun_in_all, f"{recorded} of {begun_in_all} begins: it is not fast"
    return taken


def child(tree: Path | None, calls: int) -> dict[str, float]:
    """``in_child`` in a process that imports disttrace from ``tree``; None: untraced."""
    from support.processes import clean_environ, run_program

    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        path = f"{tree}:{tree}/viewer" if tree else ""
        environ = clean_environ(
            PYTHONPATH=path, OMP_NUM_THREADS="1", DISTTRACE_CORE="python", DISTTRACE_HEARTBEAT="0"
        )
        command = [sys.executable, __file__, "--child", folder if tree else "", str(calls)]
        command.append(str(tree))
        found: dict[str, float] = json.loads(run_program(command, environ, 300.0).check().stdout)
        return found


def unpacked(revision: str, folder: Path) -> Path:
    """The files of ``revision`` of this repository."""
    archive = subprocess.run(
        ["git", "archive", "--format=zip", revision, "disttrace", "viewer"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    with zipfile.ZipFile(io.BytesIO(archive.stdout)) as files:
        files.extractall(folder)
    return folder


def compare(revision: str, turns: int, calls: int) -> dict[str, dict[str, float]]:
    """By operation and version: the median of what it adds, in nanoseconds."""
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        trees = {BARE: None, THAT: unpacked(revision, Path(folder)), THIS: ROOT}
        taken = [{name: child(tree, calls) for name, tree in trees.items()} for _ in range(turns)]
    return {
        operation: {
            name: statistics.median(turn[name][operation] - turn[BARE][operation] for turn in taken)
            for name in (THAT, THIS)
        }
        for operation in taken[0][BARE]
    }


def text(revision: str, turns: int, added: Mapping[str, Mapping[str, float]]) -> str:
    """The table, and whether the goal is met, which is one for all of them together."""
    from benchmarks.recorder.overhead import preamble
    from benchmarks.recorder.scale import FULL
    from benchmarks.report import Report, Table, Verdict, document

    ratios = {name: each[THIS] / each[THAT] for name, each in added.items()}
    mean = statistics.mean(ratios.values())
    rows = tuple(
        (name, f"{each[THAT] / 1000:.2f}", f"{each[THIS] / 1000:.2f}", f"{ratios[name]:.2f}")
        for name, each in added.items()
    )
    return document(
        [
            Report(
                tables=(
                    Table(
                        f"The plain core beside {revision} (`fake`)",
                        (
                            "operation",
                            revision,
                            "disttrace, plain",
                            f"disttrace, plain / {revision}",
                        ),
                        rows,
                        note="Microseconds of the calling thread's CPU time that each adds.",
                    ),
                ),
                verdicts=(
                    Verdict(
                        f"The plain core: at most {GOAL:g} of {revision}, mean of the operations",
                        f"{mean:.2f} ({min(ratios.values()):.2f} to {max(ratios.values()):.2f})",
                        mean <= GOAL,
                    ),
                ),
            )
        ],
        preamble(replace(FULL, rounds=turns)),
    )


def main() -> int:
    """Compare, print, and write where that is asked for."""
    if sys.argv[1:2] == ["--child"]:
        print(json.dumps(in_child(int(sys.argv[3]))))
        return 0
    # Not this folder itself: its modules have names that others may want.
    sys.path[0:1] = [str(ROOT), str(ROOT / "viewer"), str(ROOT / "tests")]
    from benchmarks.report import replaced

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--version", default=TEXT_COMPILED, help="a revision of this repository")
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--calls", type=int, default=CALLS)
    parser.add_argument("--write", action="store_true", help="put the figures into the docs")
    options = parser.parse_args()
    added = compare(options.version, options.turns, options.calls)
    found = text(options.version, options.turns, added)
    print(found)
    if options.write:
        page = ROOT / "docs" / "dev" / "benchmarks.md"
        page.write_text(replaced(page.read_text(), found, "version"))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
