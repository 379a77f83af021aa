"""An exception that a rank handles, in a `finally` or the like, while the others wait for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from support.journals import MS, Journal
from support.scenes import PEER_GONE, beat, findings, only, ranks, steps


def handles(journal: Journal, t: int, *, text: str = "bad batch", h: int = 0) -> None:
    """Seen by the background thread at ``t``."""
    where = journal.stack(("loader.py", 7, "load"), ("train.py", 20, "main"))
    journal.define("handling", t=t, h=h, type="ValueError", text=text, stack=where)


def hang(folder: Path, *, calls: bool, **handled: Any) -> None:
    """Two of three in all_reduce #3; rank 1 in a barrier under that number, or in no call."""
    for journal, group in steps(folder, 3):
        if journal.rank != 1:
            journal.begin(journal.collective(group), 200 * MS, q=3)
        elif calls:
            where = journal.stack(("train.py", 27, "main"))
            journal.begin(journal.collective(group, "barrier", stack=where), 210 * MS, q=3)
        if journal.rank == 1:
            handles(journal, 1_500 * MS, **handled)
        beat(journal, 20)


@pytest.mark.parametrize(("calls", "kind"), [(True, "op_mismatch"), (False, "missing_participant")])
def test_it_is_told_with_its_line(tmp_path: Path, calls: bool, kind: str) -> None:
    """Be it in another call, or in none."""
    hang(tmp_path, calls=calls)
    found = only(findings(tmp_path))
    assert (found.kind, ranks(tmp_path, found.culprits)) == (kind, [1])
    assert found.summary.endswith(" Rank 1 handles ValueError: bad batch (loader.py:7) there.")
    assert (found.hint or "").startswith("Find why rank 1 raised ValueError: bad batch (loader.py")


@pytest.mark.parametrize("other", [{"h": 1}, {"text": PEER_GONE}])
def test_what_says_nothing_of_the_reason_is_not_told(tmp_path: Path, other: dict[str, Any]) -> None:
    """What another thread handles; and that a peer went away, which is what became of something."""
    hang(tmp_path, calls=True, **other)
    assert "handles" not in only(findings(tmp_path)).summary


@pytest.mark.parametrize("later", ["no more", "call"])
def test_it_is_over(tmp_path: Path, later: str) -> None:
    """Where the thread handles nothing any more, or has made another call since."""
    for journal, group in steps(tmp_path, 3):
        if journal.rank == 1:
            handles(journal, 150 * MS)
            if later == "no more":
                journal.define("handling", t=160 * MS, h=0)
        if journal.rank == 1 and later == "call":
            journal.begin(journal.collective(group, "barrier"), 210 * MS, q=3)
        elif journal.rank != 1:
            journal.begin(journal.collective(group), 200 * MS, q=3)
        beat(journal, 20)
    assert "handles" not in only(findings(tmp_path)).summary


def test_one_that_ended_the_process_is_told_once(tmp_path: Path) -> None:
    """It left the `finally`, and nobody caught it: that is what is told."""
    for journal, group in steps(tmp_path, 3):
        if journal.rank != 1:
            journal.begin(journal.collective(group), 200 * MS, q=3)
            beat(journal, 20)
        else:
            handles(journal, 1_500 * MS)
            where = journal.stack(("loader.py", 7, "load"))
            journal.define(
                "failure", t=2_000 * MS, type="ValueError", text="bad batch", stack=where, h=0
            )
            journal.define("exit", t=2_001 * MS, how="exception", code=1)
    told = " ".join(found.summary for found in findings(tmp_path))
    assert "ValueError: bad batch" in told
    assert "handles" not in told
