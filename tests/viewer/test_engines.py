"""Engines under what is read as a whole: the same numbers as in one process."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from disttrace.cli import main
from disttrace_viewer.api import journals, load, stats
from disttrace_viewer.load import batch
from disttrace_viewer.merge.reader import load as load_by
from frameworks.libraries import environment
from support.journals import bulk
from support.processes import ROOT, clean_environ
from support.splits import drawn, losing

WHERE = ("rank", "op", "group_name", "seq", "begin_ns", "end_ns", "line")


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


def test_an_engine_of_ones_own_reads_journal_by_journal(tmp_path: Path) -> None:
    """All rows of all journals, each read without the others, are those of the job."""
    import polars as pl

    bulk(tmp_path, 800, 4)
    whole = load(str(tmp_path)).select(*WHERE)
    apart = pl.concat(load(files).select(*WHERE) for files in journals(str(tmp_path)))
    assert apart.sort(WHERE).equals(whole.sort(WHERE))


PAGE = (ROOT / "docs" / "tables.md").read_text(encoding="utf-8")
OWN = PAGE.partition("## An engine of your own")[2]
BLOCKS = dict(re.findall(r"^(\w+)[^\n]*:\n\n```python\n(.*?)```", OWN, re.DOTALL | re.MULTILINE))


def counted(engine: str, folder: Path, python: Path) -> object:
    """What the page's lines find in a folder of journals."""
    code = BLOCKS[engine].replace('"DIR"', repr(os.fspath(folder)))
    script = folder.parent / "page.py"
    script.write_text(f"{code}\nif __name__ == '__main__':\n    print(repr(counts))\n")
    env = clean_environ(PYSPARK_PYTHON=os.fspath(python), SPARK_LOCAL_IP="127.0.0.1")
    # Below pytest's faulthandler_timeout: what takes too long fails by itself, and alone.
    done = subprocess.run([python, script], env=env, capture_output=True, text=True, timeout=150)
    assert done.returncode == 0, done.stderr
    return eval(done.stdout)


def expected(folder: Path) -> object:
    """The same by one process that reads all."""
    rows = load(os.fspath(folder)).select("op", "line")
    return rows.group_by("op", "line").len().sort("op", "line").rows()


@pytest.mark.parametrize("engine", ["Polars", "Dask"])
def test_what_is_installed_here(tmp_path: Path, engine: str) -> None:
    """On one machine."""
    bulk(tmp_path / "journals", 400, 4)
    found = counted(engine, tmp_path / "journals", Path(sys.executable))
    assert found == expected(tmp_path / "journals")


@pytest.mark.long
@pytest.mark.parametrize(
    ("engine", "packages"), [("Spark", ("pyspark", "pyarrow", "pandas")), ("Ray", ("ray",))]
)
def test_what_takes_an_environment_of_its_own(
    tmp_path: Path, engine: str, packages: tuple[str, ...]
) -> None:
    """Spark's local master needs Java on this machine, too."""
    bulk(tmp_path / "journals", 400, 4)
    python = environment(*packages) / "python"
    assert counted(engine, tmp_path / "journals", python) == expected(tmp_path / "journals")
