"""Profiles of torch.profiler give statistics, and say nothing of hangs."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from disttrace_viewer.api.statistics import stats
from disttrace_viewer.api.verdict import diagnose
from disttrace_viewer.load.problems import ViewerError
from support.profiles import late_rank_1


def test_who_comes_late_is_in_the_statistics(tmp_path: Path) -> None:
    late_rank_1(tmp_path)
    found = stats(tmp_path)
    (row,) = found.operations.to_dicts()
    assert (row["op"], row["calls"]) == ("all_reduce", 20)
    assert row["last_to_arrive"] == [{"rank": 1, "count": 10}]
    waited = {one["rank"]: one["waiting_ns"] for one in found.ranks.to_dicts()}
    assert waited == {0: pytest.approx(200e6, rel=0.01), 1: 0}


def test_packed_ones_are_read_too(tmp_path: Path) -> None:
    """``export_chrome_trace("rank0.json.gz")``; one that is cut is a sentence."""
    (tmp_path / "plain").mkdir()
    late_rank_1(tmp_path / "plain")
    for path in (tmp_path / "plain").iterdir():
        (tmp_path / f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
    (row,) = stats(tmp_path).operations.to_dicts()
    assert (row["calls"], row["last_to_arrive"]) == (20, [{"rank": 1, "count": 10}])
    for path in tmp_path.glob("*.gz"):
        path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(ViewerError, match=r"rank0\.json\.gz: is no whole profile"):
        stats(tmp_path)


def test_nothing_is_said_of_a_hang(tmp_path: Path) -> None:
    late_rank_1(tmp_path)
    with pytest.raises(ViewerError, match="only what ended"):
        diagnose(tmp_path)


@pytest.mark.parametrize(
    "text",
    [
        '{"schemaVersion": 1, "traceEvents": [',
        '{"schemaVersion": 1}',
        '{"schemaVersion": 1, "distributedInfo": {"rank": -1}, "traceEvents": []}',
        '{"schemaVersion": 1, "distributedInfo": {"rank": 0}, "traceEvents": [1, {"args": 5}]}',
        '{"schemaVersion": 1, "distributedInfo": {"rank": 0}, "traceEvents": [STRANGE]}',
    ],
)
def test_what_is_no_profile_is_a_sentence(tmp_path: Path, text: str) -> None:
    strange = '{"cat": "kernel", "args": {"Collective name": "barrier", "Seq": 1}, "ts": "x"}'
    (tmp_path / "rank0.json").write_text(text.replace("STRANGE", strange))
    with pytest.raises(ViewerError, match=r"rank0\.json: (it )?(is an?|is no|has)"):
        stats(tmp_path)
