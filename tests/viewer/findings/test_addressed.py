"""Whoever is at the end of a chain may have been addressed by mistake, or waits elsewhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.journals import MS
from support.scenes import S, beat, findings, only, ranks, stand, steps

DETAIL = "RuntimeError: Detected mismatch between collectives on ranks. Rank 0 is running ..."


@pytest.mark.parametrize("habit", [False, True])
def test_a_message_to_the_wrong_rank(tmp_path: Path, habit: bool) -> None:
    """Rank 0 sends to 2, which is busy; rank 1 receives from 0. If that very call has met rank 2
    before, the destination is right, and rank 2 is late.
    """
    for journal, group in steps(tmp_path, 3):
        if habit and journal.rank == 0:
            call = journal.message(group, "send", 2)
            journal.run(call, t=150 * MS, d=2 * MS, q=1)
            journal.begin(call, 200 * MS, q=2)
        elif habit and journal.rank == 2:
            journal.run(journal.message(group, "recv", 0), t=150 * MS, d=2 * MS, q=1)
        elif journal.rank == 0:
            journal.begin(journal.message(group, "send", 2), 200 * MS, q=1)
        if journal.rank == 1:
            journal.begin(journal.message(group, "recv", 0), 200 * MS, q=1)
        if journal.rank == 2:
            stand(journal, 3 * S, "/src/loader.py", 9, "load")
        beat(journal, 20)
    found = only(findings(tmp_path))
    assert found.kind == "unmatched_send"
    assert ranks(tmp_path, found.culprits) == ([2] if habit else [])
    assert ("is the destination right?" in found.summary) is not habit


def test_a_collective_in_the_wrong_group(tmp_path: Path) -> None:
    """Rank 1 is in the group with rank 2 at the line where rank 0 waits in that with rank 1."""
    for journal, _ in steps(tmp_path, 3):
        rank = journal.rank or 0
        groups = {}
        for members in ([0, 1], [1, 2]):
            if rank in members:
                groups[members[0]] = journal.group(
                    journal.prefix_store(1, f"{members}"),
                    name=f"{members}",
                    ranks=members,
                    size=2,
                    rank=members.index(rank),
                    default=False,
                )
        if rank < 2:
            journal.begin(journal.collective(groups[rank]), 200 * MS, q=1)
        beat(journal, 20)
    found = only(findings(tmp_path))
    assert (found.kind, found.culprits) == ("missing_participant", ())
    assert "is the group right?" in found.summary


def test_a_side_thread_holds_up_nobody(tmp_path: Path) -> None:
    """Every rank's listener waits for "shutdown"; rank 1's main thread is in its loader."""
    for journal, group in steps(tmp_path, 3):
        journal.numbered("thread", name="listener", native=7)
        wait = journal.call("store.wait", kind="store", store=1)
        journal.begin(wait, 150 * MS, k="shutdown", h=1)
        if journal.rank != 1:
            journal.begin(journal.collective(group), 200 * MS, q=3)
        beat(journal, 20)
    found = only(findings(tmp_path))
    assert (found.kind, ranks(tmp_path, found.culprits)) == ("missing_participant", [1])


@pytest.mark.parametrize("joined", [False, True])
def test_a_side_thread_that_is_joined_counts(tmp_path: Path, joined: bool) -> None:
    """The main thread is at work, or waits for the thread that waits for a key nobody sets."""
    for journal, _ in steps(tmp_path, 2):
        wait = journal.call("store.wait", kind="store", store=1)
        journal.begin(wait, 150 * MS, k="done", h=1)
        if joined:
            frames = (("/usr/lib/python3.12/threading.py", 1149, "join"), ("train.py", 9, "main"))
            journal.record(at=3 * S, h=0, k=journal.stack(*frames))
        else:
            stand(journal, 3 * S, "train.py", 12, "compute")
        beat(journal, 20)
    kinds = [found.kind for found in findings(tmp_path)]
    assert kinds == (["store_key_missing"] if joined else [])


def test_a_call_that_raises_under_detail_has_begun(tmp_path: Path) -> None:
    """All members raise in the call, which takes no number: the calls themselves are compared."""
    for journal, group in steps(tmp_path, 3):
        op = "all_gather" if journal.rank == 0 else "all_reduce"
        number = journal.begin(journal.collective(group, op), 200 * MS, q=3)
        journal.end(number, MS, x=journal.string(DETAIL), f=1)
        stack = journal.stack(("train.py", 10, "main"))
        text = DETAIL.partition(": ")[2]
        journal.define("failure", t=210 * MS, type="RuntimeError", text=text, stack=stack, h=0)
        journal.define("exit", t=211 * MS, how="exception", code=1)
    found = only(findings(tmp_path))
    assert (found.kind, found.seq) == ("op_mismatch", 3)
    assert ranks(tmp_path, found.culprits) == [0]
    assert found.consequences[0].startswith("Ranks 1, 2 failed with RuntimeError")
