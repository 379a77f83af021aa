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
