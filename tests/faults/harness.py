"""Runs a row traced and diagnoses it twice: while it hangs, and after everything was killed."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from faults.clocks import shift_clocks
from faults.expectation import EXAMPLES, NODES, REPOSITORY, Row
from faults.judge import brief, judge, serious
from support.losses import FEW, wrong_verdicts
from support.networks import DEVICE, Host
from support.processes import free_port, kill_family, run_program, running
from support.scenes import all_gone
from support.splits import differing

STALL_S = 3.0
PAUSE_S = 2.0
# Only a run that goes wrong, or a machine with much else to do, takes so long.
DEADLINE_S = 90.0
ENDED_S = 110.0


@dataclass(frozen=True, slots=True)
class Verdict:
    when: str  # "live", "post mortem" or "ended"
    said: str
    problems: tuple[str, ...]
    report: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Outcome:
    row: Row
    verdicts: tuple[Verdict, ...]
    problems: tuple[str, ...]  # about the run itself
    code: int | None  # None where it was ended from outside
    stdout: str
    stderr: str
    seconds: float

    @property
    def right(self) -> bool:
        return not self.problems and not any(one.problems for one in self.verdicts)

    def explain(self) -> str:
        """What went wrong, for the one who reads the test's failure."""
        lines = [self.row.name, *self.problems]
        for verdict in self.verdicts:
            lines += [f"{verdict.when}: {problem}" for problem in verdict.problems]
        reports = [json.dumps(one.report.get("findings"), indent=1) for one in self.verdicts[-1:]]
        return "\n".join([*lines, *reports, self.stdout[-1000:], self.stderr[-3000:]])


OWN_FOLDER = ["sh", "-c", 'DISTTRACE_DIR=$DISTTRACE_DIR/rank$RANK exec "$@"', "sh"]
"""Before a worker's command: its journals are in a folder that no other process knows."""


def command(row: Row, apart: Path | None = None, hosts: Sequence[Host] = ()) -> list[str]:
    """How it is started; ``apart``: a folder per rank; ``hosts``: in turns, the first serves."""
    program = [str(row.path), *row.arguments]
    if row.torchrun:
        way = "--standalone" if row.standalone else f"--master-port={free_port()}"
        launcher = ["-m", "torch.distributed.run", way, f"--nproc-per-node={row.world}"]
        if apart is not None:
            launcher += ["--no-python", *OWN_FOLDER, sys.executable]
        return [sys.executable, *launcher, *program]
    options = row.launch.split()
    if apart is not None:
        for rank in range(row.world):
            options += ["--set", f"{rank}:DISTTRACE_DIR={apart / f'rank{rank}'}"]
            if hosts:
                options += ["--set", f"{rank}:MASTER_ADDR={hosts[0].address}"]
                options += ["--set", f"{rank}:GLOO_SOCKET_IFNAME={DEVICE}"]
                under = shlex.join(hosts[rank % len(hosts)].command())
                options += ["--under", f"{rank}:{under}"]
    if row.launcher != NODES:
        options = ["--world", str(row.world), *options]
    return [sys.executable, str(EXAMPLES / "faults" / row.launcher), *options, *program]


def diagnose(folder: Path) -> tuple[dict[str, Any] | None, int, str]:
    """The report, the exit code, and stderr; no report where nothing could be read."""
    command = [sys.executable, "-m", "disttrace", "diagnose", str(folder), "--json"]
    environ = {name: value for name, value in os.environ.items() if name != "DISTTRACE"}
    done = run_program([*command, "--stall", str(STALL_S)], environ, 100.0, cwd=REPOSITORY)
    try:
        report = json.loads(done.stdout)
    except json.JSONDecodeError:
        return None, done.code, f"{'hung: ' if done.hung else ''}{done.stderr}"
    return report, done.code, done.stderr


def started(
    row: Row, folder: Path, environ: Mapping[str, str], *, apart: bool = False,
    hosts: Sequence[Host] = (),
) -> AbstractContextManager[subprocess.Popen[bytes]]:  # fmt: skip
    """The row's program, traced, in a group of its own; ``apart``, ``hosts``: as ``command``."""
    environment = {
        **os.environ, "DISTTRACE": "1", "DISTTRACE_DIR": str(folder / "journals"),
        "OMP_NUM_THREADS": "1", **environ,
    }  # fmt: skip
    line = command(row, folder / "journals" if apart or hosts else None, hosts)
    return running(line, folder, environment, cwd=REPOSITORY)


def _journals(row: Row, folder: Path) -> Path:
    """Where the journals to be read are: the real ones, or a copy from hosts with other clocks."""
    journals = folder / "journals"
    if not row.clocks:
        return journals
    copy = folder / "shifted"
    shutil.rmtree(copy, ignore_errors=True)
    shift_clocks(journals, copy, row.clocks)
    return copy


def _said(report: Mapping[str, Any]) -> list[str]:
    return [brief(one) for one in serious(report)]


def _verdict(row: Row, when: str, report: dict[str, Any] | None, code: int, text: str) -> Verdict:
    if report is None:
        return Verdict(when, "nothing", (f"diagnose ended with {code}: {text[-500:]}",), {})
    said = "; ".join(_said(report)) or "healthy"
    return Verdict(when, said, tuple(judge(row, report, code)), report)


def _live(row: Row, folder: Path, process: subprocess.Popen[bytes]) -> Verdict | None:
    """The first diagnosis that stays the same for a while, or the last; None: it ended before."""
    deadline = time.monotonic() + DEADLINE_S
    before: list[str] = []
    since = time.monotonic()
    while True:
        time.sleep(PAUSE_S)
        report, code, text = diagnose(_journals(row, folder))
        now = time.monotonic()
        if process.poll() is not None:
            return None
        said = _said(report) if report else []
        if said != before:
            before, since = said, now
        if (said and now - since >= row.settled_s) or now > deadline:
            return _verdict(row, "live", report, code, text)


def _wait_for_end(process: subprocess.Popen[bytes]) -> bool:
    try:
        process.wait(ENDED_S)
    except subprocess.TimeoutExpired:
        return False
    return True


def _differing_by_workers(journals: Path, name: str) -> list[str]:
    """In a process of its own: a pool may not be forked beside the threads of other rows."""
    done = subprocess.run(
        [sys.executable, "-m", "support.splits", str(journals), name],
        capture_output=True, text=True, timeout=200, check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    return [done.stderr[-300:]] if done.returncode else []


def run_row(
    row: Row, folder: Path, environ: Mapping[str, str] | None = None, *, losses: bool = False
) -> Outcome:
    """Run a row in a folder of its own; ``losses``: judge it without each single file too."""
    began = time.monotonic()
    verdicts: list[Verdict] = []
    problems: list[str] = []
    with started(row, folder, environ or {}) as process:
        if row.ends == "ends":
            if not _wait_for_end(process):
                problems.append(f"still runs after {ENDED_S:g} s, although it should end")
        else:
            live = _live(row, folder, process)
            if live:
                verdicts.append(live)
            elif row.ends == "hang":
                problems.append(f"ended with {process.returncode}, although it should hang")
        if row.number == 0 and process.poll() != 0:
            problems.append(f"a healthy program ended with {process.returncode}")
        killed = process.poll() is None
        kill_family(process)
    report, code, text = diagnose(_journals(row, folder))
    verdicts.append(_verdict(row, "post mortem" if killed else "ended", report, code, text))
    if losses:
        lost = wrong_verdicts(_journals(row, folder), folder / "scratch", all_gone, FEW)
        problems += [f"without {text}" for text in lost]
        problems += _differing_by_workers(_journals(row, folder), row.name)
    problems += differing(_journals(row, folder))
    return Outcome(
        row=row, verdicts=tuple(verdicts), problems=tuple(problems),
        code=None if killed else process.returncode,
        stdout=(folder / "stdout").read_text(errors="replace"),
        stderr=(folder / "stderr").read_text(errors="replace"), seconds=time.monotonic() - began,
    )  # fmt: skip
