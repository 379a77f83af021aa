"""Is disttrace right on NCCL? Runs every scenario, judges journals and verdicts, prints a table.

    python prove.py                          # ranks share one GPU, each with its own NCCL_HOSTID
    python prove.py --backend standin        # the same on a stand-in that enqueues, as NCCL does
    python prove.py --only missing,order     # some; --list names them
    python prove.py --counter                # the other way round: each has to be seen to fail

`--counter` leaves each scenario's fault out, or puts one into what is healthy: a check that passes
then, too, shows nothing. Needs disttrace and disttrace_viewer importable (PYTHONPATH). Exit code:
the number of failed checks. Ends only processes that it started. All it saw goes to --out.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from gpu.proof.checks import Said
from gpu.proof.jobs import Jobs
from gpu.proof.scenarios import SCENARIOS, Scenario
from gpu.proof.what_is_left import Run

_ASKED = (
    "import torch, torch._C._distributed_c10d as c; print(torch.cuda.device_count(), "
    "hasattr(c, 'ProcessGroupNCCL2'), hasattr(torch.distributed, 'shrink_group'))"
)
_STANDIN_KNOWS = ("", "standin", "nccl2", "gpus", "shrink")


class Prover:
    """Runs scenarios on one backend; ``counter``: the other way round."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.o = options
        self.begun = time.monotonic()
        self.here = _STANDIN_KNOWS if options.backend == "standin" else _of_this_torch()

    def prove(self, scenario: Scenario) -> tuple[str, list[Said], float]:
        """What its checks say, and the seconds that took."""
        if time.monotonic() - self.begun > self.o.total:
            return scenario.name, [(False, "not run: out of time")], 0.0
        if scenario.needs not in self.here:
            return scenario.name, [(None, f"needs {scenario.needs}")], 0.0
        begun = time.monotonic()
        try:
            said = self._said(scenario)
        except Exception as error:
            said = [(False, f"the kit itself: {type(error).__name__}: {error}")]
        return scenario.name, said, time.monotonic() - begun

    def _said(self, scenario: Scenario) -> list[Said]:
        jobs = Jobs(self.o, scenario, fault=scenario.faulty is not self.o.counter)
        plain = jobs.run(traced=False) if scenario.baseline else None
        run = jobs.run(traced=True)
        checked: list[Said] = []
        real = self.o.backend != "standin"
        for check in scenario.checks + (scenario.cuda_checks if real else ()):
            checked += check(run, plain)
        if not self.o.counter:
            problems = (plain.problems if plain else []), run.problems
            return [(None, f"untraced: {t}") for t in problems[0]] + _failed(run) + checked
        seen = [text for good, text in checked if good is False]
        if not any(good is not None for good, _ in checked):
            return [(None, "only reports")]
        return [(bool(seen), f"seen to fail: {seen[0]}" if seen else f"passes: {checked}")]


def _failed(run: Run) -> list[Said]:
    return [(False, text) for text in run.problems]


def _of_this_torch() -> tuple[str, ...]:
    """What there is besides one GPU."""
    found = subprocess.run(
        [
            sys.executable,
            "-c",
            _ASKED,
        ],
        capture_output=True, text=True, check=True,
    ).stdout.split()  # fmt: skip
    more = zip(("gpus", "nccl2", "shrink"), (int(found[0]) > 1, *found[1:]), strict=True)
    return ("", "cuda", *(name for name, there in more if there in (True, "True")))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--backend", default="nccl")
    parser.add_argument("--only", default="")
    parser.add_argument("--counter", action="store_true", help="each has to be seen to fail")
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", ".")) / "proof")
    parser.add_argument("--jobs", type=int, default=3, help="at a time, except the timed ones")
    parser.add_argument("--limit", type=float, default=150.0, help="seconds for one run")
    parser.add_argument("--total", type=float, default=3000.0, help="seconds; none begins later")
    parser.add_argument("--list", action="store_true")
    options = parser.parse_args()
    options.out = options.out.resolve()
    return options


def _table(results: list[tuple[str, list[Said], float]]) -> list[str]:
    table = []
    for name, said, seconds in results:
        for n, (good, text) in enumerate(said):
            mark = {True: "ok", False: "FAIL", None: "--"}[good]
            took = f"   [{seconds:.0f} s]" if n == 0 and seconds else ""
            table.append(f"{name if n == 0 else '':22} {mark:5} {text}{took}")
    return table


def main() -> int:
    """All that were asked for, and the table of them."""
    options = _options()
    wanted = [s for s in SCENARIOS if not options.only or s.name in options.only.split(",")]
    if options.list:
        print("\n".join(s.name for s in wanted))
        return 0
    options.sockets = tempfile.mkdtemp(prefix="standin-")  # paths of sockets are short
    prover = Prover(options)
    results = [prover.prove(s) for s in wanted if s.alone]
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        results += pool.map(prover.prove, [s for s in wanted if not s.alone])
    shutil.rmtree(options.sockets, ignore_errors=True)
    said = [good for _, each, _ in results for good, _ in each]
    run = sum(1 for _, _, seconds in results if seconds)
    table = _table(results)
    table.append(
        f"{said.count(False)} checks failed, {said.count(True)} right, in {run} scenarios; "
        f"{len(results) - run} need what is not here; {time.monotonic() - prover.begun:.0f} s"
    )
    text = "\n".join(table)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "table.txt").write_text(text + "\n")
    with tarfile.open(options.out.parent / "proof.tar.gz", "w:gz") as archive:
        archive.add(options.out, "proof")
    print(text)
    return min(said.count(False), 100)


if __name__ == "__main__":
    raise SystemExit(main())
