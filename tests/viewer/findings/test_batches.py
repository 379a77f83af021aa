"""What is coalesced into one launch runs at one time: a batch waits for whoever is not there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from support.journals import MS, Journal, workers
from support.scenes import S, beat, findings, leave, only, ranks

ON_DEVICE: dict[str, Any] = {"backend": "nccl", "device": "cuda"}


def batch(journal: Journal, group: int, *messages: tuple[str, int], number: int = 1) -> None:
    """Messages of one ``batch_isend_irecv``, the first one issued at one second."""
    t = S + 10 * number * MS
    around = journal.begin(journal.call("coalescing_manager", kind="composed", origin="python"), t)
    for op, peer in messages:
        call = journal.message(group, op, peer, **ON_DEVICE, **{"async": True})
        one = journal.begin(call, t + MS, q=number, p=around)
        journal.record(i=one, d=MS)
    journal.end(around, 5 * MS)


def ring(
    folder: Path,
    size: int,
    *,
    away: int | None = None,
    behind: int | None = None,
    batches: int = 1,
    until_s: int | None = None,
) -> None:
    """Each sends to the next one and receives from the one before, in one batch, or in several;
    they end at a time, or live on.

    ``away`` does not come; the device of ``behind`` is at a collective that nobody else is in.
    """
    for journal in workers(folder, size):
        group = journal.group(
            journal.prefix_store(journal.tcp_store(server=journal.rank == 0), "default_pg", "0/"),
            size=size, backends={"cuda": "nccl"},
        )  # fmt: skip
        rank = journal.rank or 0
        if rank == behind:
            one = journal.begin(journal.collective(group, **ON_DEVICE), MS, q=1)
            journal.record(i=one, d=MS)
        for number in range(1, batches + 1) if rank != away else ():
            both = (("send", (rank + 1) % size), ("recv", (rank - 1) % size))
            batch(journal, group, *both, number=number)
        beat(journal, until_s or 40)
        if until_s:
            leave(journal, until_s * S)


def test_who_ended_well_was_held_by_no_device(tmp_path: Path) -> None:
    """Nobody looked again before they ended, so no completion is on record."""
    ring(tmp_path, 3, until_s=4)
    assert findings(tmp_path) == []


@pytest.mark.parametrize("batches", [1, 3])
def test_a_ring_that_hangs_is_no_cycle(tmp_path: Path, batches: int) -> None:
    """All are there: each send has its receive at the front of another device. What returned may be
    one of several that are in flight.
    """
    ring(tmp_path, 3, batches=batches)
    found = findings(tmp_path)
    assert {f.kind for f in found} == {"no_progress"}
    assert [f.culprits for f in found] == [()] * len(found)


def test_whoever_is_not_there_is_told_and_nobody_else(tmp_path: Path) -> None:
    """Rank 0's send has its other end; it waits in the same batch for rank 3."""
    ring(tmp_path, 4, away=3)
    found = findings(tmp_path)
    blamed = {rank for f in found for rank in ranks(tmp_path, f.culprits)}
    assert blamed == {3}
    assert found[0].kind in ("unmatched_send", "unmatched_recv")


def test_a_device_that_is_at_something_older(tmp_path: Path) -> None:
    """Rank 1's batch stands behind a collective that only it has issued."""
    ring(tmp_path, 3, behind=1)
    found = findings(tmp_path)
    assert found[0].kind in ("deadlock", "missing_participant")
    assert "no_progress" not in {f.kind for f in found if f.severity == "error"}
    assert only(found) is found[0]
