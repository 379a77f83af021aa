"""A reader of docs/hang.md who types its commands as they stand finds the culprit of a hang."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from support.processes import (
    ROOT,
    clean_environ,
    companions,
    free_port,
    kill_family,
    run_program,
    running,
    wait_until,
)
from support.raw import read_journals

PAGE = (ROOT / "docs" / "hang.md").read_text(encoding="utf-8")
FAULTS = ROOT / "examples" / "faults"
TORCHRUN = (sys.executable, "-m", "torch.distributed.run")
STALL_S = "3"
PATIENCE_S = 90.0
NEVER = "Rank 1 never joined all_reduce #3 of the default group"


def commands(heading: str) -> list[list[str]]:
    """The command lines of each shell block of a section."""
    section = PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    blocks = re.findall(r"```sh\n(.*?)```", section, re.DOTALL)
    return [[line.split("  #")[0].strip() for line in block.splitlines()] for block in blocks]


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """A reader's shell, in which `disttrace` is this checkout's."""
    binaries = tmp_path / "bin"
    binaries.mkdir()
    script = binaries / "disttrace"
    script.write_text(f'#!/bin/sh\nexec {sys.executable} -m disttrace "$@"\n')
    script.chmod(0o755)
    return clean_environ(
        PATH=f"{binaries}{os.pathsep}{os.environ['PATH']}",
        DISTTRACE_STALL=STALL_S,
        OMP_NUM_THREADS="1",
    )


def typed(lines: Sequence[str], folder: Path, environ: dict[str, str]) -> dict[str, str]:
    """What each command line printed, run by a shell in a folder."""
    return {one: run_program(["sh", "-c", one], environ, 120, cwd=folder).stdout for one in lines}


def hanging(
    command: Sequence[str], folder: Path, environ: dict[str, str]
) -> AbstractContextManager[subprocess.Popen[bytes]]:
    """A job in a folder of its own, traced."""
    return running(command, folder, {**environ, "DISTTRACE": "1"}, cwd=folder)


def stalled(folder: Path, where: str) -> bool:
    """Whether the job said by itself that it hangs there (a busy machine may be slow before)."""
    said = (folder / "stderr").read_text()
    return any(where in line for line in said.splitlines() if "disttrace: stalled: " in line)


def beats(folder: Path, rank: int) -> int:
    """How many signs of life a rank has written."""
    journals = read_journals(folder)
    ranks = [one for one in journals if any(i["rank"] == rank for i in one.of("identity"))]
    return sum("hb" in record for one in ranks for record in one.records)


def test_live(tmp_path: Path, environ: dict[str, str]) -> None:
    """A rank is in its loader: stderr says so by itself, once, in ten lines, and each command has
    its part; after the end no process and no file of ours is left.
    """
    (lines,) = commands("While it hangs")
    job = tmp_path / "job"
    program = [*TORCHRUN, "--nproc-per-node", "2", "--master-port", str(free_port())]
    with hanging([*program, str(FAULTS / "slow_loader.py"), "--culprit", "1"], job, environ):
        wait_until(lambda: stalled(job, "all_reduce #3"), PATIENCE_S)
        said = typed(lines, job, environ)
    wait_until(lambda: not companions(job / "disttrace-out"), PATIENCE_S)
    left = [path for path in (job / "disttrace-out").iterdir() if path.suffix != ".jsonl"]
    assert left == []
    told = [x for x in (job / "stderr").read_text().splitlines() if x.startswith("disttrace:")]
    assert told[0].startswith(f"disttrace: stalled: {NEVER}")
    assert "slow_loader.py" in told[0]
    assert sum(NEVER in line for line in told) == 1
    assert len(told) <= 10
    report, with_stacks, view, packed = said.values()
    assert f"1. ERROR missing_participant: {NEVER}" in report
    assert "slow_loader.py:34 in load" in report
    assert with_stacks.count("slow_loader.py") > report.count("slow_loader.py")
    assert "missing: rank 1" in view
    (name,) = (path.name for path in job.glob("*.tar.gz"))
    assert packed.startswith(f"{name}: 3 journals")


@pytest.mark.long
def test_post_mortem(tmp_path: Path, environ: dict[str, str]) -> None:
    """A rank computes for ever; the job was killed, and its journals moved."""
    (lines,) = commands("After it was killed")
    job, later = tmp_path / "job", tmp_path / "later"
    program = [sys.executable, str(FAULTS / "launch.py"), str(FAULTS / "slow_loader.py")]
    program += ["--culprit", "0", "--where", "loop", "--op", "broadcast"]
    with hanging(program, job, environ) as process:
        wait_until(lambda: stalled(job, "broadcast #3"), PATIENCE_S)
        # That rank 0 lived, elsewhere, is certain of the dead only where it wrote so.
        enough = beats(job / "disttrace-out", 0) + 2
        wait_until(lambda: beats(job / "disttrace-out", 0) >= enough, PATIENCE_S)
        kill_family(process)
    later.mkdir()
    shutil.move(job / "disttrace-out", later)
    report, *_ = typed(lines, later, environ).values()
    assert "1. ERROR missing_participant: Rank 0 never joined broadcast #3" in report
    assert re.search(r"slow_loader.py:3[23] in load", report)
    assert len(list(later.glob("*.tar.gz"))) == 1


@pytest.mark.long
def test_several_nodes(tmp_path: Path, environ: dict[str, str]) -> None:
    """Two nodes with a folder each: collected on each, put together, and the culprit is found."""
    (here,), (there) = commands("Several nodes")[0], commands("Several nodes")[1]
    node1, node2, desk = tmp_path / "node1", tmp_path / "node2", tmp_path / "desk"
    port = str(free_port())

    def node(rank: int) -> list[str]:
        options = ["--nnodes", "2", "--nproc-per-node", "2", "--node-rank", str(rank)]
        options += ["--master-addr", "127.0.0.1", "--master-port", port]
        return [*TORCHRUN, *options, str(FAULTS / "slow_loader.py"), "--culprit", "2"]

    with hanging(node(0), node1, environ), hanging(node(1), node2, environ):
        wait_until(lambda: any(stalled(n, "all_reduce #3") for n in (node1, node2)), PATIENCE_S)
        time.sleep(1.0)  # the note of where rank 2 is
        for folder in (node1, node2):
            typed([here], folder, environ)
    desk.mkdir()
    for folder in (node1, node2):
        (packed,) = folder.glob("*.tar.gz")
        shutil.copy(packed, desk)
    assert len(list(desk.iterdir())) == 2
    merged, report, _stacks, view = typed(there, desk, environ).values()
    assert "of 2 archives" in merged
    verdict = "1. ERROR missing_participant: Rank 2 never joined all_reduce #3"
    assert verdict in report
    assert "ranks 0, 1, 3 have been waiting at slow_loader.py:42" in report
    assert "missing: rank 2" in view
