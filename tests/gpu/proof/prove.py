"""Is disttrace right on NCCL? Runs every scenario, judges journals and verdicts, prints a table.

    python prove.py                          # ranks share one GPU, each with its own NCCL_HOSTID
    python prove.py --backend standin        # the same on a stand-in that enqueues, as NCCL does
    python prove.py --only missing,order     # some; --list names them
    python prove.py --counter                # the other way round: each has to be seen to fail
    python prove.py --backend standin --semantics 2.5,2.15 --write PAGE   # of which torch's NCCL

`--counter` leaves each scenario's fault out, or puts one into what is healthy: a check that passes
then, too, shows nothing. `--jobs` run at a time (the timed ones alone), each for `--limit` seconds
at most, and none begins after `--total` seconds. Needs disttrace and disttrace_viewer importable
(PYTHONPATH). Exit code: the number of failed checks. Ends only processes that it started. All it
saw goes to --out.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from gpu.proof import page
from gpu.proof.checks import Said
from gpu.proof.jobs import ENDED, STANDS, VERSION, Jobs
from gpu.proof.scenarios import SCENARIOS, Scenario
from support.campaigns import beside, options

_ASKED = (
    "import torch, torch._C._distributed_c10d as c; print(torch.cuda.device_count(), "
    "hasattr(c, 'ProcessGroupNCCL2'), hasattr(torch.distributed, 'shrink_group'))"
)
_STANDIN_KNOWS = ("", "standin", "nccl2", "gpus", "shrink", "device_errors")


@dataclass(frozen=True)
class Result:
    """What the checks of a scenario said; ``seconds`` are 0 where it was not run."""

    name: str
    version: str
    said: list[Said]
    seconds: float


class Prover:
    """Runs scenarios on one backend; ``counter``: the other way round."""

    def __init__(self, given: argparse.Namespace) -> None:
        self.o = given
        self.begun = time.monotonic()
        self.here = _STANDIN_KNOWS if given.backend == "standin" else _of_this_torch()

    def prove(self, scenario: Scenario, version: str) -> Result:
        """What its checks say, and the seconds that took."""
        name = scenario.name if version == VERSION else f"{scenario.name} {version}"
        said, seconds = self._proved(scenario, version)
        return Result(name, version, said, seconds)

    def _proved(self, scenario: Scenario, version: str) -> tuple[list[Said], float]:
        if time.monotonic() - self.begun > self.o.total:
            return [(False, "not run: out of time")], 0.0
        if scenario.needs not in self.here:
            return [(None, f"needs {scenario.needs}")], 0.0
        begun = time.monotonic()
        try:
            said = self._said(scenario, version)
        except Exception as error:
            said = [(False, f"the kit itself: {type(error).__name__}: {error}")]
        return said, time.monotonic() - begun

    def _said(self, scenario: Scenario, version: str) -> list[Said]:
        jobs = Jobs(self.o, scenario, version, fault=scenario.faulty is not self.o.counter)
        plain = jobs.run(traced=False) if scenario.baseline else None
        run = jobs.run(traced=True)
        checked: list[Said] = []
        real = self.o.backend != "standin"
        for check in scenario.checks + (scenario.cuda_checks if real else ()):
            checked += check(run, plain)
        if not self.o.counter:
            problems = (plain.problems if plain else []), run.problems
            failed: list[Said] = [(False, text) for text in run.problems]
            return [(None, f"untraced: {t}") for t in problems[0]] + failed + checked
        unwanted = [text for text in run.problems if not text.startswith((ENDED, STANDS))]
        if unwanted or not run.journals:
            return [(False, f"the counter-test itself failed: {unwanted or 'no journals'}")]
        seen = [text for good, text in checked if good is False]
        if not any(good is not None for good, _ in checked):
            return [(None, "only reports")]
        return [(bool(seen), f"seen to fail: {seen[0]}" if seen else f"passes: {checked}")]


def _of_this_torch() -> tuple[str, ...]:
    """What there is besides one GPU."""
    found = subprocess.run(
        [sys.executable, "-c", _ASKED],
        capture_output=True, text=True, check=True,
    ).stdout.split()  # fmt: skip
    more = zip(("gpus", "nccl2", "shrink"), (int(found[0]) > 1, *found[1:]), strict=True)
    computes = () if "KIT_IMITATED" in os.environ else ("kernels",)
    return (
        "", "cuda", "device_errors", *computes,
        *(name for name, there in more if there in (True, "True")),
    )  # fmt: skip


def _device() -> str:
    import torch

    version = f"torch {torch.__version__.split('+')[0]}"
    return version if "KIT_IMITATED" in os.environ else f"{torch.cuda.get_device_name()}, {version}"


def _table(results: list[Result]) -> list[str]:
    table = []
    for result in results:
        for n, (good, text) in enumerate(result.said):
            mark = {True: "ok", False: "FAIL", None: "--"}[good]
            took = f"   [{result.seconds:.0f} s]" if n == 0 and result.seconds else ""
            table.append(f"{result.name if n == 0 else '':22} {mark:5} {text}{took}")
    return table


def main() -> int:
    """All that were asked for, and the table of them."""
    given = options(
        __doc__, backend="nccl", only="", counter=False, jobs=3, limit=150.0, total=3000.0,
        out=Path(os.environ.get("OUT", "."), "proof"), semantics=VERSION, write=Path, list=False,
    )  # fmt: skip
    given.out = given.out.resolve()
    wanted = [s for s in SCENARIOS if not given.only or s.name in given.only.split(",")]
    if given.list:
        print("\n".join(s.name for s in wanted))
        return 0
    given.sockets = tempfile.mkdtemp(prefix="standin-")  # paths of sockets are short
    prover = Prover(given)
    each = [(s, version) for s in wanted for version in given.semantics.split(",")]
    results = [prover.prove(*one) for one in each if one[0].alone]
    together = [one for one in each if not one[0].alone]
    results += beside(lambda one: prover.prove(*one), together, given.jobs)
    shutil.rmtree(given.sockets, ignore_errors=True)
    if given.write:
        device = None if given.backend == "standin" else _device()
        page.write(given.write, results, {s.name: s.about for s in SCENARIOS}, device)
    said = [good for result in results for good, _ in result.said]
    run = sum(1 for result in results if result.seconds)
    table = _table(results)
    table.append(
        f"{said.count(False)} checks failed, {said.count(True)} right, in {run} scenarios; "
        f"{len(results) - run} need what is not here; {time.monotonic() - prover.begun:.0f} s"
    )
    text = "\n".join(table)
    given.out.mkdir(parents=True, exist_ok=True)
    (given.out / "table.txt").write_text(text + "\n")
    with tarfile.open(given.out.parent / "proof.tar.gz", "w:gz") as archive:
        archive.add(given.out, "proof")
    print(text)
    return min(said.count(False), 100)


if __name__ == "__main__":
    raise SystemExit(main())
