"""Bandwidths by the backend's own clock, where it measured all members of a collective."""

from __future__ import annotations

from pathlib import Path

import pytest

import disttrace
from support.journals import MS
from support.scenes import steps


@pytest.mark.parametrize(("measured", "clock", "seconds"), [(2, "device", 2e-3), (1, "host", 0.01)])
def test_the_devices_time_counts_where_all_have_it(
    tmp_path: Path, measured: int, clock: str, seconds: float
) -> None:
    """Rank 1 comes 40 ms late: the device of rank 0 waits for it, its own takes 2 ms."""
    for journal, _ in steps(tmp_path, 2, count=0):
        group = journal.group(name="a", ranks=[0, 1], size=2, backends={"cuda": "nccl"},
                              default=False)  # fmt: skip
        call = journal.collective(group, backend="nccl", device="cuda", bytes=4000)
        rank = journal.rank or 0
        late = 40 * MS * rank
        number = journal.begin(call, 200 * MS + late, q=1)
        journal.record(i=number, d=MS // 10)
        own = (
            {"z": 2 * MS + 40 * MS * (1 - (journal.rank or 0))}
            if (journal.rank or 0) < measured
            else {}
        )
        journal.record(c=number, d=50 * MS - late, g=MS, **own)
    (row,) = [
        r for r in disttrace.stats(str(tmp_path)).operations.to_dicts() if r["op"] == "all_reduce"
    ]
    assert row["clock"] == clock
    assert row["algbw"] == pytest.approx(4000 / seconds)
    (one,) = [
        r for r in disttrace.load(str(tmp_path)).collectives.to_dicts() if r["op"] == "all_reduce"
    ]
    assert (one["clock"], one["algbw"]) == (clock, pytest.approx(4000 / seconds))
