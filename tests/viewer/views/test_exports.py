"""`disttrace export` and `disttrace jobs`: formats by suffix, whole files, tables for engines."""

from __future__ import annotations

import gzip
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import polars as pl
import pytest

import disttrace
from disttrace import cli
from disttrace_viewer.api import jobs
from disttrace_viewer.api import trace as exports
from disttrace_viewer.api.trace import format_of
from disttrace_viewer.commands.export import FORMATS
from disttrace_viewer.load.problems import ViewerError
from disttrace_viewer.states import folder
from disttrace_viewer.views import jsonl
from support.journals import MS, T0, Journal, training, workers
from support.processes import ROOT, python

PAGE = (ROOT / "docs" / "tables.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("path", "wanted", "found"),
    [
        ("a.jsonl", None, "jsonl"), ("a/b.JSONL.GZ", None, "jsonl"), ("a.json", None, "perfetto"),
        ("a.json.gz", None, "perfetto"), ("a.html", None, "html"), ("a.html.gz", "html", "html"),
        ("a.parquet", None, "parquet"), ("a.parquet/", None, "parquet"),
        ("a.jsonl", "otlp", "otlp"), ("spans", "otlp", "otlp"), ("operations", None, "jsonl"),
        ("tables", "parquet", "parquet"), (None, None, "jsonl"), ("/dev/stdout", None, "jsonl"),
    ],
)  # fmt: skip
def test_the_suffix_tells_the_format(path: str | None, wanted: str | None, found: str) -> None:
    """Where none is named; where one is, it may only agree."""
    assert format_of(path, wanted) == found
    assert tuple(exports.FORMATS) == FORMATS  # which the command knows without importing writers


@pytest.mark.parametrize(
    ("path", "wanted", "sentence"),
    [
        ("a.html", "jsonl", "a.html says html and --format says jsonl: leave one of them out"),
        ("a.json.gz", "html", "a.json.gz says perfetto and --format says html: leave one of them"),
        ("a.csv", None, ".csv names no format; name one by --format, or end a.csv in one of"),
        ("a.parquet.gz", None, "parquet is compressed by itself: leave .gz out of a.parquet.gz"),
        (None, "csv", "no format 'csv'; there are: html, jsonl, otlp, parquet, perfetto"),
    ],
)
def test_a_contradiction_is_a_sentence(path: str | None, wanted: str | None, sentence: str) -> None:
    """And nothing is read or written."""
    with pytest.raises(ViewerError, match=re.escape(sentence)):
        format_of(path, wanted)


def test_gz_is_gzip(tmp_path: Path) -> None:
    """The same bytes inside, and the same file from the same trace."""
    training(tmp_path / "in")
    trace = disttrace.load(tmp_path / "in")
    for name in ("a.jsonl", "a.jsonl.gz", "b.jsonl.gz"):
        trace.export(tmp_path / name)
    packed = (tmp_path / "a.jsonl.gz").read_bytes()
    assert gzip.decompress(packed) == (tmp_path / "a.jsonl").read_bytes()
    assert packed == (tmp_path / "b.jsonl.gz").read_bytes()


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A job ``in`` a folder: 66 ranks in two buckets, a straggler, an agent, store traffic, and a
    hang at the end; and its tables in ``trace.parquet``.
    """
    folder = tmp_path_factory.mktemp("rich")
    late = 40 * MS
    for journal in workers(folder / "in", 66):
        call = journal.collective(journal.world(), bytes=4000)
        store = journal.prefix_store(journal.tcp_store(server=journal.rank == 0), "p")
        op = "store.set" if journal.rank == 0 else "store.get"
        journal.run(journal.call(op, kind="store", store=store), 50 * MS, MS, k="key")
        t = 100 * MS
        for number in range(1, 13):
            behind = late if journal.rank == 65 else 0
            journal.run(call, t + behind, late + MS - behind, q=number)
            t += late + 10 * MS
        if journal.rank != 3:
            journal.begin(call, t, q=13)
        journal.record(hb=t + 30_000 * MS)
    agent = Journal(folder / "in", pid=1, role="agent")
    agent.run(agent.call("rendezvous", kind="composed", name='it\'s "odd"'), MS, MS)
    disttrace.load(folder / "in").export(folder / "trace.parquet")
    return folder


def test_parquet_holds_the_tables(exported: Path) -> None:
    """Partitions by job and bucket of 64 ranks; what the frames of the API hold."""
    trace, target = disttrace.load(exported / "in"), exported / "trace.parquet"
    trace.export(target)  # an export takes the place of another one
    parts = sorted(str(p.relative_to(target)) for p in target.rglob("*.parquet"))
    assert parts == [
        "exchanges.parquet", "findings.parquet", "groups.parquet",
        "operations/job=job/ranks=0/part-0.parquet", "operations/job=job/ranks=1/part-0.parquet",
        "operations/job=job/ranks=none/part-0.parquet",
        "processes.parquet",
        "store_operations.parquet",
    ]  # fmt: skip
    read = pl.read_parquet(target / "operations" / "**" / "*.parquet", hive_partitioning=True)
    assert read.height == trace.operations.height
    assert {"job", "ranks", "rank", "line", "wait_ns", "duration_ns", "kind"} <= set(read.columns)
    mine = read.filter(pl.col("rank") == 65)
    assert mine["ranks"].unique().to_list() == ["1"]
    assert pl.read_parquet(target / "exchanges.parquet").equals(trace.collectives)
    assert pl.read_parquet(target / "processes.parquet").equals(trace.processes)
    assert pl.read_parquet(target / "groups.parquet").equals(trace.groups)
    findings = pl.read_parquet(target / "findings.parquet")
    assert findings["kind"].to_list() == [found.kind for found in trace.findings]
    assert findings["culprit_ranks"].to_list()[0] == [3]
    stores = pl.read_parquet(target / "store_operations.parquet")
    assert stores.filter(part="set").select("key", "rank").rows() == [("p/key", 0)]
    waited = int(read["wait_ns"].sum())
    assert waited == disttrace.stats(exported / "in").waiting_ns


def test_parquet_takes_the_place_of_nothing_else(tmp_path: Path) -> None:
    """A folder of somebody else stays, and nothing is left beside it."""
    training(tmp_path / "in")
    trace = disttrace.load(tmp_path / "in")
    (tmp_path / "mine.parquet").mkdir()
    (tmp_path / "mine.parquet" / "thesis.tex").write_text("precious")
    with pytest.raises(ViewerError, match=r"mine.parquet exists and is no export of ours"):
        trace.export(tmp_path / "mine.parquet")
    with pytest.raises(ViewerError, match=r"cannot write .*/none/x.parquet: No such file"):
        trace.export(tmp_path / "none" / "x.parquet")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["in", "mine.parquet"]


def blocks(language: str) -> list[str]:
    """The code blocks of a language in docs/tables.md."""
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture
def tables(exported: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that holds ``trace.parquet``, as the page assumes."""
    monkeypatch.chdir(exported)
    return exported


def test_the_queries_for_duckdb_answer(tables: Path) -> None:
    """Slowest rank per group, waiting per line, bandwidth by size."""
    duckdb = pytest.importorskip("duckdb")
    queries = [text for text in blocks("sql") if "trace.parquet" in text]
    slowest, lines, bandwidth, late, _ = (duckdb.sql(text).fetchall() for text in queries)
    check(slowest, lines, bandwidth)
    assert late == [("missing_participant", [3])]
    # By operation, group and line; also of what is in flight.
    query = blocks("sql")[-1]
    found = duckdb.sql(query)
    rows = [dict(zip(found.columns, row, strict=True)) for row in found.fetchall()]
    expected = disttrace.stats(tables / "in").to_dict()["operations"]
    assert rows
    assert rows == [{name: row[name] for name in found.columns} for row in expected]


def test_the_queries_for_polars_answer(tables: Path) -> None:
    (code,) = [text for text in blocks("python") if "scan_parquet" in text]
    names: dict[str, Any] = {}
    exec(code, names)
    check(*(names[name].rows() for name in ("slowest", "lines", "bandwidth")))


def check(slowest: Any, lines: Any, bandwidth: Any) -> None:
    """What any engine must find in ``exported``."""
    assert [(row[0], row[1], row[2]) for row in slowest] == [("0", 65, 12)]
    assert slowest[0][3] == pytest.approx(12 * 40.0)
    waits = {(row[0], row[1]): row[3] for row in lines}
    assert waits["train.py:10", "all_reduce"] > 12 * 65 * 0.040
    assert [(row[1], row[2]) for row in bandwidth] == [(4000, 12)]
    assert bandwidth[0][3] == pytest.approx(4000 / 1e-3 * 2 * 65 / 66 / 1e6)


def test_jobs_are_listed(tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    """Newest first, with what they ran, when and where; commands take the first."""
    training(tmp_path, 2, 3)
    workers(tmp_path, 4, job="old", t0=T0 // 2, host="far")
    assert cli.main(["jobs", str(tmp_path), "--width", "100"]) == 0
    title, new, old, which = capfdbinary.readouterr().out.decode().splitlines()
    assert title.split() == ["job", "program", "started", "ran", "ranks", "processes", "hosts"]
    assert new.split()[:2] + new.split()[-3:] == ["job", "train.py", "2", "2", "host"]
    assert (old.split()[0], old.split()[-1]) == ("old", "far")
    assert which == "2 jobs; commands take job unless --job names another"
    assert cli.main(["jobs", str(tmp_path), "--json"]) == 0
    found = orjson.loads(capfdbinary.readouterr().out)
    told = [(job["id"], job["newest"], job["ranks"]) for job in found["jobs"]]
    assert told == [("job", True, [0, 1]), ("old", False, [0, 1, 2, 3])]
    assert [job.id for job in jobs(tmp_path)] == ["job", "old"]


@pytest.mark.parametrize("command", ["jobs", "top --once"])
def test_a_list_of_jobs_and_a_hang_need_no_polars(tmp_path: Path, command: str) -> None:
    """Its import takes as long as all else."""
    first, second = workers(tmp_path, 2)
    first.begin(first.collective(first.world()), t=9 * MS, q=1)
    second.record(hb=60_000 * MS)
    told = f"import sys; from disttrace.cli import main; main([*{command.split()}, sys.argv[1]])"
    ran = python("-c", f"{told}; print('polars' in sys.modules)", tmp_path).check()
    assert ran.stdout.splitlines()[-1] == "False"


def test_how_long_a_killed_job_ran_is_in_its_journals(tmp_path: Path) -> None:
    """Not in the time of files, which may have been copied days later."""
    for journal in workers(tmp_path, 2):
        journal.record(hb=15_000 * MS)
    for path in tmp_path.iterdir():
        os.utime(path, (2**31, 2**31))
    (job,) = jobs(tmp_path)
    assert job.last_ns - job.start_ns == pytest.approx(15_000 * MS, abs=MS)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_an_export_that_is_ended_leaves_no_half_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    """A signal in its midst: neither the target nor what was written beside it."""

    def ended(*_: object) -> Iterator[bytes]:
        yield b"{}\n"
        os.kill(os.getpid(), number)
        yield b"{}\n"

    training(tmp_path / "in")
    (tmp_path / "out").mkdir()
    monkeypatch.setattr(jsonl, "lines", ended)
    before = signal.signal(number, signal.SIG_DFL)  # nohup has it ignored
    try:
        with pytest.raises(SystemExit) as left:
            cli.main(["export", str(tmp_path / "in"), "-o", str(tmp_path / "out" / "x.jsonl")])
        assert signal.getsignal(number) is signal.SIG_DFL
    finally:
        signal.signal(number, before)
    assert left.value.code == 128 + number
    assert os.listdir(tmp_path / "out") == []


def test_half_written_states_are_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``reduce`` ended by SIGTERM in mid-run."""

    def ended(*args: Any, **named: Any) -> folder.StateBatch:
        os.kill(os.getpid(), signal.SIGTERM)
        return run(*args, **named)

    run = folder.run
    training(tmp_path / "in")
    monkeypatch.setattr(folder, "run", ended)
    with pytest.raises(SystemExit, match=str(128 + signal.SIGTERM)):
        cli.main(["reduce", str(tmp_path / "in"), "-o", str(tmp_path / "out")])
    assert os.listdir(tmp_path / "out") == []
