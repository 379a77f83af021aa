"""What people paste: logs, stacks and torchrun's folder, with the right answer of each."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from disttrace_viewer.api.attached import from_files
from disttrace_viewer.api.report import Report
from disttrace_viewer.api.verdict import diagnose

HERE = Path(__file__).parent / "evidence"
ALL = "All members have joined"


@dataclass(frozen=True)
class Piece:
    """A piece of evidence: the kind of its first finding, whom all of them blame, and words of the
    report; ``kind`` None: nothing is certain, and the report says so.
    """

    name: str
    kind: str | None
    culprits: tuple[int, ...] = ()
    says: tuple[str, ...] = ()
    says_not: tuple[str, ...] = ()


CASES = (
    Piece(
        "stuck_watchdog",
        "no_progress",
        says=("rank 0 (EXPERT_TENSOR_AND_MODEL", "rank 4 (EXPERT_MODEL", "480 s", "GIL"),
    ),
    Piece(
        "summary_only",
        "process_failed",
        (1,),
        ("Rank 1 failed first, with exit code 1", "06:21:10", "ended after it"),
    ),
    Piece("detail_mismatch", "op_mismatch", (), ("#485", "train.py:91", "train.py:44"), ("first",)),
    Piece("monitored", "missing_participant", (3,), ("monitored_barrier",)),
    Piece("sync_is_a_wait", "no_progress", (), ("train.py:99", "train.py:88"), (" for 1",)),
    Piece(
        "one_file_of_all", "missing_participant", (2,), ("data.py:31", "train.py:77"), (" for ",)
    ),
    Piece("what_line", "no_progress", (), ("all_gather #1", "may have more members")),
    Piece("stack_in_the_log", "missing_participant", (0,), ("broadcast #77", "runner.py:484")),
    Piece("nccl_info", "op_mismatch", (3,), ("Rank 3 left out all_gather_into_tensor #644",)),
    Piece("error_files", "process_failed", (1,), ("ValueError: shard 7 is empty (train.py:33)",)),
)


C10D = "/opt/env/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"


def interrupted(rank: int, line: int, *, waits: bool) -> str:
    """A traceback of SIGINT, with the label of srun."""
    inner = [f'  File "{C10D}", line 3252, in all_reduce'] if waits else []
    rows = ["Traceback (most recent call last):", f'  File "/srv/e/train.py", line {line}, in step']
    return "\n".join(f"{rank}: {row}" for row in [*rows, *inner, "KeyboardInterrupt"])


MISMATCH = "RuntimeError: Detected mismatch between collectives on ranks. Rank"
PRINT = "CollectiveFingerPrint(OpType="
OLD_SUMMARY = """Root Cause:
[0]:
  time: 2021-07-11_09:12:31
  rank: 2 (local_rank: 2)
  exitcode: 1 (pid: 2041)
Other Failures:
[1]:
  time: 2021-07-11_09:12:31
  rank: 0 (local_rank: 0)
  exitcode: 1 (pid: 2039)
"""
GATHER = (
    "[Rank {0}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7,"
    " OpType=_ALLGATHER_BASE, NumelIn=4096, NumelOut=32768, Timeout(ms)=600000) ran for 600100"
    " milliseconds before timing out."
)
STORE = (
    "RuntimeError: Timed out initializing process group in store based barrier on rank: {},"
    " for key: store_based_barrier_key:1 (world_size={}, worker_count={}, timeout=0:30:00)"
)
RESTATED = {
    # After the wordings of pytorch/pytorch#100207, #79724, #80197, nccl#849, metaseq#52,
    # DEIM#105 and yolov5#4574, in other words and numbers.
    "numbers that were never set": (
        (
            f"{MISMATCH} 26 is running collective: CollectiveFingerPrint(SequenceNumber=68305,"
            " OpType=BROADCAST, TensorShape=[1], TensorDtypes=Long), but Rank 1 is running"
            " collective: CollectiveFingerPrint(SequenceNumber=51387OpType=BROADCAST)."
        ),
        Piece("", "op_mismatch", (), ("ranks 1, 26",), ("#51387",)),
    ),
    "each rank tells its own": (
        (
            f"[rank0]: {MISMATCH} 0 is running inconsistent collective: {PRINT}ALLREDUCE)\n"
            f"{MISMATCH} 1 is running inconsistent collective: {PRINT}REDUCE)"
        ),
        Piece("", "op_mismatch", (), ("rank 0 all_reduce", "rank 1 reduce")),
    ),
    "tracebacks of an interrupt": (
        "\n".join(interrupted(r, 30 if r == 2 else 44, waits=r != 2) for r in range(4)),
        Piece("", "missing_participant", (2,), ("train.py:30", "train.py:44"), (" for 1",)),
    ),
    "an old summary": (
        OLD_SUMMARY,
        Piece("", "process_failed", (2,), ("Rank 2 failed first",), ("after it",)),
    ),
    "a gather tells how many there are": (
        "\n".join(GATHER.format(rank) for rank in (0, 1)),
        Piece("", "missing_participant", (), ("of ranks 2-7 the log has no line",)),
    ),
    "several are missing": (
        "RuntimeError: [Rank 0]: Ranks 4, 5, 6 failed to pass monitoredBarrier in 20000 ms",
        Piece("", "missing_participant", (4, 5, 6)),
    ),
    "a store with too few": (
        "\n".join(STORE.format(rank, 4, 3) for rank in (0, 2, 3)),
        Piece("", "rendezvous_incomplete", (1,)),
    ),
    "a store with too many": (
        STORE.format(2, 2, 4),
        Piece("", "rendezvous_incomplete", (), ("an earlier launch",)),
    ),
    "pending work": (
        "\n".join(
            f"[rank{r}]:[E ProcessGroupNCCL.cpp:1316] [PG 0 Rank {r}] Heartbeat monitor timed out!"
            f" workMetaList_.size()={n}"
            for r, n in ((0, 84), (1, 103))
        ),
        Piece("", "no_progress", (), ("rank 0 (84 pending)", "rank 1 (103 pending)")),
    ),
    "what the job said": (
        "disttrace: stalled (likely): Rank 2 never joined all_reduce #8. (19:29:26)",
        Piece("", "missing_participant", (2,), ("Said by the job itself at 19:29:26",)),
    ),
    "a task of srun": (
        "srun: error: node-b: task 5: Killed",
        Piece("", "process_failed", (5,), ("SIGKILL",)),
    ),
}


@pytest.mark.parametrize("name", RESTATED)
def test_wordings_of_public_reports(tmp_path: Path, name: str) -> None:
    text, piece = RESTATED[name]
    (tmp_path / "job.log").write_text(f"{text}\n")
    check(diagnose(tmp_path / "job.log"), piece)


def check(report: Report, piece: Piece) -> None:
    """Whether a report is the right one."""
    text = str(report)
    bad = [one for one in report.findings if one.severity != "note"]
    assert next((one.kind for one in bad), None) == piece.kind, text
    assert {rank for one in bad for rank in one.culprit_ranks} == {*piece.culprits}, text
    for words in piece.says:
        assert words in text, text
    for words in (ALL, "journal", *piece.says_not):
        assert words not in text, text
    assert bool(bad) or report.incomplete, text


@pytest.mark.parametrize("piece", CASES, ids=lambda one: one.name)
def test_pieces_with_a_known_truth(piece: Piece) -> None:
    folder = HERE / piece.name
    stacks = sorted(map(str, folder.glob("*.txt")))
    report = from_files(stacks).report if stacks else diagnose(folder)
    assert report is not None
    check(report, piece)
