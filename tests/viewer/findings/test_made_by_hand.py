"""Groups that are made by hand (``ProcessGroupGloo(store, rank, size)``, those of ``init_rpc``)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from support.journals import MS, Journal, workers
from support.scenes import all_gone, beat, fail, findings, only, ranks, store_call


def make(journal: Journal, *, prefix: str, rank: int, size: int, over: bool = False) -> None:
    """Construct a group over a store that all have; ``over``: it came about."""
    base = journal.tcp_store(29600, server=journal.rank == 0)
    call = journal.call(
        "ProcessGroupGloo",
        kind="constructor",
        store=journal.prefix_store(base, prefix),
        origin="python",
        stack=journal.stack(("hand.py", 6, "main")),
        args={"rank": rank, "size": size},
    )
    if over:
        journal.run(call, t=200 * MS, d=10 * MS)
    else:
        journal.begin(call, 200 * MS)


@pytest.mark.parametrize(
    ("came", "pairs", "missing"),
    [((0, 2), False, [1]), ((1, 2), False, [0]), ((2,), True, [3])],
    ids=["a client of nothing", "the server", "a pair with ranks of its own"],
)
def test_who_is_missing_is_a_process_and_no_lost_journal(
    tmp_path: Path, came: Sequence[int], pairs: bool, missing: list[int]
) -> None:
    """By rank where the ranks are the job's, else who has made fewer groups over the store."""
    for journal in workers(tmp_path, 4 if pairs else 3):
        rank = journal.rank or 0
        if pairs:
            journal.tcp_store(29600, server=rank == 0)
            if rank not in missing:
                prefix, over = f"pair{rank // 2}", rank not in came
                make(journal, prefix=prefix, rank=rank % 2, size=2, over=over)
        elif rank in came:
            make(journal, prefix="x", rank=rank, size=3)
        beat(journal, 70)
    found = only(findings(tmp_path))
    assert found.kind == "rendezvous_incomplete"
    assert (ranks(tmp_path, found.culprits), found.absent_ranks) == (missing, ())


@pytest.mark.parametrize("silent", [False, True])
def test_who_fell_silent_before_it_joined_may_have_ended(tmp_path: Path, *, silent: bool) -> None:
    """Nobody saw whether rank 1 still lived."""
    for journal in workers(tmp_path, 2):
        journal.tcp_store(29600, server=journal.rank == 0)
        if journal.rank == 0:
            make(journal, prefix="x", rank=0, size=2)
        beat(journal, 20 if silent and journal.rank else 70)
    found = only(findings(tmp_path))
    assert (found.kind, ranks(tmp_path, found.culprits)) == ("rendezvous_incomplete", [1])
    assert found.certainty == ("likely" if silent else "certain")
    assert ["still lived" in told for told in found.settles] == [True] * silent


def test_nobody_is_named_where_it_may_be_any_of_several(tmp_path: Path) -> None:
    """Two of three others may be the second of a pair."""
    for journal in workers(tmp_path, 4):
        journal.tcp_store(29600, server=journal.rank == 0)
        if journal.rank == 2:
            make(journal, prefix="pair", rank=0, size=2)
        beat(journal, 70)
    found = only(findings(tmp_path))
    assert (found.kind, found.culprits, found.absent_ranks) == ("rendezvous_incomplete", (), ())
    assert "who is missing is not known" in found.summary


def test_who_turned_into_another_program_took_the_store_with_it(tmp_path: Path) -> None:
    """Rank 0 served it; rank 1 lost contact with it in a wait for a key."""
    for journal in workers(tmp_path, 2):
        journal.world()
        if journal.rank == 0:
            journal.define("exit", t=300 * MS, how="exec")
            continue
        waits = journal.begin(store_call(journal, "wait", 13), 200 * MS)
        journal.end(waits, 200 * MS, x=journal.string(f"DistNetworkError: {LOST}"), f=1)
        fail(journal, 401 * MS, "DistNetworkError", LOST)
    found = only(findings(tmp_path, look=all_gone))
    assert (found.kind, ranks(tmp_path, found.culprits)) == ("process_failed", [0])
    assert "rank 0, which became another program (exec)" in found.summary


LOST = "Failed to recv, got 0 bytes. Connection was likely closed. Did the remote server shutdown?"


@pytest.mark.parametrize("over", [False, True])
def test_two_processes_come_under_one_rank(tmp_path: Path, *, over: bool) -> None:
    """The arguments of the constructor say so, whatever the processes' own ranks are."""
    for journal in workers(tmp_path, 3):
        rank = min(journal.rank or 0, 1)
        make(journal, prefix="x", rank=rank, size=3, over=over and rank == 1)
        beat(journal, 70)
    found = only(findings(tmp_path))
    assert (found.kind, ranks(tmp_path, found.culprits)) == ("duplicate_rank", [1, 2])
    assert "2 processes claim rank 1" in found.summary
    assert found.summary.endswith("nobody claims rank 2.")
