"""A job that breaks while it is read is read once more."""

from __future__ import annotations

import time
from pathlib import Path

from disttrace_viewer.diagnosis.announced import settled
from disttrace_viewer.findings.case import Case
from disttrace_viewer.findings.finding import RuleFinding
from support.journals import MS, T0
from support.scenes import PEER_GONE, S, all_gone, only, ranks, steps, verdict


def test_who_acted_after_it_was_read_is_not_missing(tmp_path: Path) -> None:
    """Rank 1's journal was read first: before it sent what rank 0's error speaks of."""
    now = {"offset_ns": time.time_ns() - T0 - 20 * S}
    (first, group), (second, other) = steps(tmp_path, 2, **now)
    receive = first.begin(first.message(group, "recv", 1), 19 * S, q=1)
    first.end(receive, 100 * MS, x=first.string(PEER_GONE))
    second.record(hb=18 * S)
    readings: list[tuple[Case, tuple[RuleFinding, ...]]] = []

    def read() -> tuple[Case, tuple[RuleFinding, ...]]:
        if len(readings) == 1:
            second.begin(second.message(other, "send", 0, shapes=[[5]], bytes=20), 18 * S, q=1)
        readings.append(verdict(tmp_path, look=all_gone))
        return readings[-1]

    _, found = settled(read, lambda said: [said[0].evidence])
    assert len(readings) == 2
    assert ranks(tmp_path, only(readings[0][1]).culprits) == [1]
    assert only(found).kind == "size_mismatch"


def test_what_broke_long_ago_is_read_once(tmp_path: Path) -> None:
    """Its journals are as they will be."""
    for journal, group in steps(tmp_path, 2):
        if journal.rank == 0:
            lost = journal.begin(journal.collective(group), 2 * S, q=3)
            journal.end(lost, 100 * MS, x=journal.string(PEER_GONE))
    times = []

    def read() -> tuple[Case, tuple[RuleFinding, ...]]:
        times.append(1)
        return verdict(tmp_path, look=all_gone)

    settled(read, lambda said: [said[0].evidence])
    assert times == [1]
