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


def caught(rank: int, seq: int, op: str = "ALLREDUCE", elements: int = 8652160) -> str:
    return (
        f"[rank{rank}]:[E626 16:48:25.440 ProcessGroupNCCL.cpp:670] [Rank {rank}] Watchdog caught"
        f" collective operation timeout: WorkNCCL(SeqNum={seq}, OpType={op}, NumelIn={elements},"
        f" NumelOut={elements}, Timeout(ms)=1800000) ran for 1800068 milliseconds before timing"
        " out."
    )


def counts(rank: int, at: int, enqueued: int, completed: int) -> str:
    return (
        f"[rank{rank}]:[E626 16:48:26.440 ProcessGroupNCCL.cpp:1895] [PG ID 0 PG GUID 0(default_pg)"
        f" Rank {rank}] failure detected by watchdog at work sequence id: {at} PG status: last"
        f" enqueued work: {enqueued}, last completed work: {completed}"
    )


def told(folder: Path, *lines: str) -> Report:
    path = folder / "job.log"
    path.write_text("starting\n" + "noise\n" * 2000 + "\n".join(lines) + "\n")
    return diagnose(path)


@pytest.mark.parametrize("prefix", PREFIXES)
def test_who_enqueued_less_has_not_come(tmp_path: Path, prefix: str) -> None:
    lines = [caught(r, 120049) for r in (0, 1, 3)] + [counts(2, 120048, 120048, 120048)]
    (found,) = told(tmp_path, *(prefix + line for line in lines)).findings
    assert (found.kind, found.certainty) == ("missing_participant", "likely")
    assert (found.culprit_ranks, found.seq) == ((2,), 120049)


def test_all_in_one_is_nobody_s_fault(tmp_path: Path) -> None:
    (found,) = told(tmp_path, *(caught(r, 7) for r in range(4))).findings
    assert (found.kind, found.culprit_ranks) == ("no_progress", ())


def test_another_operation_of_one_number(tmp_path: Path) -> None:
    lines = [caught(r, 7, op="BROADCAST" if r == 1 else "ALLREDUCE") for r in range(4)]
    found = told(tmp_path, *lines).findings[0]
    assert (found.kind, found.culprit_ranks) == ("op_mismatch", (1,))


def test_who_has_no_line_is_named_and_not_blamed(tmp_path: Path) -> None:
    report = told(tmp_path, *(caught(r, 7) for r in (0, 1, 3)))
    assert not any(found.culprit_ranks for found in report.findings)
    assert "of rank 2 the log has no such line" in str(report)


def test_counts_that_were_never_set_are_none(tmp_path: Path) -> None:
    old = (
        "[PG 1 Rank 1] Timeout at NCCL work: 1, last enqueued NCCL work: 1, last completed NCCL"
        " work: 93459313471793."
    )
    assert "93459313471793" not in str(told(tmp_path, caught(0, 1), caught(1, 1), old))


def test_the_first_exception_that_is_no_echo(tmp_path: Path) -> None:
    lines = [
        "[rank2]: Traceback (most recent call last):",
        '[rank2]:   File "/home/me/train.py", line 31, in step',
        "[rank2]:     raise ValueError('bad batch')",
        "[rank2]: ValueError: bad batch",
        *(caught(r, 7) for r in (0, 1)),
        "[rank0]: Traceback (most recent call last):",
        '[rank0]:   File "/home/me/train.py", line 44, in step',
        "[rank0]: torch.distributed.DistBackendError: NCCL error: remote process exited",
    ]
    found = told(tmp_path, *lines).findings[0]
    assert (found.kind, found.culprit_ranks) == ("process_failed", (2,))
    assert "bad batch" in found.summary


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


def test_the_corpus_is_whole() -> None:
    assert len(CORPUS) >= 30
    assert len({one.name for one in CORPUS}) == len(CORPUS)


def test_a_log_through_a_pipe(tmp_path: Path) -> None:
    text = "\n".join(caught(r, 7) for r in range(2))
    done = subprocess.run(
        [sys.executable, "-m", "disttrace", "diagnose", "-"],
        input=text, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "all_reduce #7" in done.stdout


def test_a_log_of_nothing_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "job.log").write_text("all is well\n")
    done = subprocess.run(
        [sys.executable, "-m", "disttrace", "diagnose", str(tmp_path / "job.log")],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


def test_a_pipe_without_a_log_is_named_as_one() -> None:
    """Nobody knows the file under which it is held."""
    words = [sys.executable, "-m", "disttrace", "diagnose", "-"]
    done = subprocess.run(words, input="hello", capture_output=True, text=True, timeout=60)
    told = "disttrace: the standard input has no line of a watchdog, and no exception.\n"
    assert (done.returncode, done.stderr) == (2, told)
