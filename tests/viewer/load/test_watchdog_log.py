"""What logs of jobs on NCCL tell, with whatever stands before their lines."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from disttrace_viewer.api.report import Report
from disttrace_viewer.api.verdict import diagnose
from support.log_corpus import CORPUS, Excerpt

PREFIXES = ("", "(RayWorkerWrapper pid=489968) ", "node3 [stderr] ", "\x1b[31m", "100%|##|\r")


def caught(rank: int, seq: int) -> str:
    return (
        f"[rank{rank}]:[E626 16:48:25.440 ProcessGroupNCCL.cpp:670] [Rank {rank}] Watchdog caught"
        f" collective operation timeout: WorkNCCL(SeqNum={seq}, OpType=ALLREDUCE, NumelIn=8652160,"
        " NumelOut=8652160, Timeout(ms)=1800000) ran for 1800068 milliseconds before timing out."
    )


COUNTS = (
    "[rank2]:[E626 16:48:26.440 ProcessGroupNCCL.cpp:1895] [PG ID 0 PG GUID 0(default_pg) Rank 2]"
    " failure detected by watchdog at work sequence id: 120048 PG status: last enqueued work:"
    " 120048, last completed work: 120048"
)


def told(folder: Path, *lines: str) -> Report:
    path = folder / "job.log"
    path.write_text("starting\n" + "noise\n" * 2000 + "\n".join(lines) + "\n")
    return diagnose(path)


@pytest.mark.parametrize("prefix", PREFIXES)
def test_who_enqueued_less_has_not_come(tmp_path: Path, prefix: str) -> None:
    lines = [caught(r, 120049) for r in (0, 1, 3)] + [COUNTS]
    (found,) = told(tmp_path, *(prefix + line for line in lines)).findings
    assert (found.kind, found.certainty) == ("missing_participant", "likely")
    assert (found.culprit_ranks, found.seq) == ((2,), 120049)


def test_counts_that_were_never_set_are_none(tmp_path: Path) -> None:
    old = (
        "[PG 1 Rank 1] Timeout at NCCL work: 1, last enqueued NCCL work: 1, last completed NCCL"
        " work: 93459313471793."
    )
    assert "93459313471793" not in str(told(tmp_path, caught(0, 1), caught(1, 1), old))


@pytest.mark.parametrize("one", CORPUS, ids=[one.name for one in CORPUS])
def test_logs_as_versions_of_torch_print_them(tmp_path: Path, one: Excerpt) -> None:
    """Who, which operation and which number; and nobody is named without cause."""
    report = told(tmp_path, *one.lines)
    bad = [found for found in report.findings if found.severity != "note"]
    assert {rank for found in bad for rank in found.culprit_ranks} == {*one.culprits}, str(report)
    assert next((found.kind for found in bad), None) == one.kind, str(report)
    if bad and one.op is not None:
        assert bad[0].op == one.op
    if bad and one.seq is not None:
        assert bad[0].seq == one.seq
    assert one.says in str(report)


def test_a_log_through_a_pipe(tmp_path: Path) -> None:
    text = "\n".join(caught(r, 7) for r in range(2))
    done = subprocess.run(
        [sys.executable, "-m", "disttrace", "diagnose", "-"],
        input=text, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "all_reduce #7" in done.stdout


def test_a_pipe_without_a_log_is_named_as_one() -> None:
    """Nobody knows the file under which it is held."""
    words = [sys.executable, "-m", "disttrace", "diagnose", "-"]
    done = subprocess.run(words, input="hello", capture_output=True, text=True, timeout=60)
    told = "disttrace: the standard input has no line of a watchdog, and no exception.\n"
    assert (done.returncode, done.stderr) == (2, told)
