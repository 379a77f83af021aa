"""Engines under what is read as a whole: the same numbers as in one process."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from disttrace.cli import main
from disttrace_viewer.api import stats
from disttrace_viewer.load import batch
from disttrace_viewer.merge.reader import load as load_by
from support.journals import bulk
from support.splits import drawn, losing


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each journal is a task of its own."""
    monkeypatch.setattr(batch, "BATCH_BYTES", 1)


@pytest.mark.parametrize("by", ["a pool", "Dask"])
def test_a_worker_is_killed_in_mid_run(tmp_path: Path, by: str) -> None:
    """Another one reads its journal, and the table is that of one process."""
    bulk(tmp_path / "job", 800, 4)
    mark = tmp_path / "died"
    engine = losing(mark, by)
    there = load_by([str(tmp_path / "job")], engine=engine)
    here = load_by([str(tmp_path / "job")])
    assert mark.exists()
    assert there.operations.equals(here.operations)
    assert there.calls.equals(here.calls)
    assert there.problems == here.problems == ()


def test_what_was_lost_twice_is_named(tmp_path: Path) -> None:
    """And everything else is read."""
    bulk(tmp_path, 800, 4)
    loses = lambda function, tasks: ((n, r if n else None) for n, r in drawn(1)(function, tasks))  # noqa: E731
    found = load_by([str(tmp_path)], engine=loses)
    assert found.operations.height == 600
    assert {one.kind for one in found.problems} == {"unreadable"}
    assert "two processes ended while they read it" in found.problems[0].sentence


def test_stats_on_a_cluster(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The command and the function give what they give without it, to the byte."""
    distributed = pytest.importorskip("distributed")
    bulk(tmp_path, 800, 4)
    with distributed.LocalCluster(
        n_workers=1, processes=False, dashboard_address=":0", host="127.0.0.1", protocol="tcp"
    ) as cluster:
        by = cluster.scheduler_address
        assert main(["stats", str(tmp_path), "--json", "--engine", by]) == 0
        there = capsys.readouterr().out
        assert stats(str(tmp_path), engine=by).operations.equals(stats(str(tmp_path)).operations)
    assert main(["stats", str(tmp_path), "--json"]) == 0
    assert json.loads(there) == json.loads(capsys.readouterr().out)
