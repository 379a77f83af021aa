"""The Python API: the same facts as the commands give, as frames and values."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import orjson
import polars as pl
import pytest

import disttrace
from disttrace_viewer.api import Finding, Location, ViewerError
from disttrace_viewer.views import jsonl
from disttrace_viewer.views.tables import FIELDS
from support.journals import MS, T0, UNIX_NS, Journal, training, workers
from support.processes import python
from support.scenes import hang_without


def varied(folder: Path) -> None:
    """Journals in which every column of an operation is filled somewhere."""
    one, two = workers(folder, 2)
    for journal in (one, two):
        group = journal.world()
        peer = 1 - (journal.rank or 0)
        outer = journal.begin(journal.call("batch_isend_irecv", kind="composed"), 12 * MS)
        cast = journal.collective(group, "broadcast", root=1, splits=[[1], [2]], reduce_op=None)
        journal.run(cast, 13 * MS, MS, q=1, p=outer)
        end = "send" if journal.rank == 0 else "recv"
        call = journal.message(group, end, None if end == "recv" else peer, tag=7)
        journal.run(call, 15 * MS, MS, q=1, **({"f": 0} if end == "recv" else {}))
        store = journal.prefix_store(journal.tcp_store(), "a", None)
        get = journal.call("store.wait", kind="store", store=store, origin="c++", args={"n": 1})
        journal.run(get, 17 * MS, MS, k=["x", "y"] if peer else "z")
        failed = journal.begin(journal.collective(group, asynchronous=True), 19 * MS, q=2)
        journal.end(failed, MS, x=journal.string("RuntimeError: gone"))
        journal.begin(cast, 21 * MS, q=3)


def plain(row: dict[str, Any]) -> dict[str, Any]:
    """A row of jsonl in the form that it has in a frame."""
    text = {name: row[name] for name in ("splits", "args", "key")}
    for name, value in text.items():
        row[name] = value if isinstance(value, (str, type(None))) else orjson.dumps(value).decode()
    keys = ("file", "line", "function")
    row["stack"] = [dict(zip(keys, one, strict=True)) for one in row["stack"]]
    return row


def normal(row: dict[str, Any]) -> dict[str, Any]:
    """The same with JSON text in one spelling."""
    for name in ("splits", "args", "key"):
        if row[name] is not None and row[name][:1] in "[{":
            row[name] = orjson.dumps(orjson.loads(row[name])).decode()
    return row


def test_operations_are_the_rows_of_jsonl(tmp_path: Path) -> None:
    """Every column of every operation, but for the form of those that are nested."""
    varied(tmp_path)
    trace = disttrace.load(tmp_path)
    lines = b"".join(jsonl.lines(trace.model)).splitlines()
    expected = [plain(orjson.loads(line)) for line in lines]
    assert trace.operations.columns == list(FIELDS)
    assert [normal(row) for row in trace.operations.to_dicts()] == expected
    for name in ("parent", "root", "peer", "key", "error", "splits", "tag"):
        assert trace.operations[name].null_count() < trace.operations.height, name


def test_columns_can_be_chosen(tmp_path: Path) -> None:
    """Also those that jsonl does not have; a wrong one is a sentence."""
    training(tmp_path)
    trace = disttrace.load(tmp_path)
    rows = trace.select("rank", "op", "line", "kind", "duration_ns")
    assert rows.row(0) == (0, "all_reduce", "train.py:10", "collective", MS // 10)
    with pytest.raises(ValueError, match=r"no column 'lines'; there are: id, parent, "):
        trace.select("lines")


def test_a_collective_is_one_row(tmp_path: Path) -> None:
    """Arrivals in order, who was last, what was waited, and nccl-tests' bandwidths."""
    jobs = workers(tmp_path, 2)
    for journal in jobs:
        call = journal.collective(journal.world(), bytes=4000)
        late = 40 * MS * (journal.rank or 0)
        journal.run(call, 100 * MS + late, 50 * MS - late, q=1)
    (row,) = disttrace.load(tmp_path).collectives.to_dicts()
    begin = UNIX_NS + 100 * MS
    assert row == {
        **row, "job": "job", "group_name": "0", "backend": "gloo", "seq": 1, "op": "all_reduce",
        "line": "train.py:10", "bytes": 4000, "expected": 2, "arrived": 2, "missing": [],
        "arrivals": [
            {"rank": 0, "process": jobs[0].process, "begin_ns": begin},
            {"rank": 1, "process": jobs[1].process, "begin_ns": begin + 40 * MS},
        ],
        "first_rank": 0, "last_rank": 1, "pending": False, "wait_ns": 40 * MS, "spread_ns": 40 * MS,
        "busy_ns": 10 * MS, "algbw": 400_000.0, "busbw": 400_000.0, "clock": "host",
    }  # fmt: skip


def test_who_is_missing_is_in_the_row(tmp_path: Path) -> None:
    """Of a collective that one member never began."""
    for journal in workers(tmp_path, 3):
        call = journal.collective(journal.world())
        if journal.rank != 1:
            journal.begin(call, 100 * MS, q=1)
        journal.record(hb=3000 * MS)
    (row,) = disttrace.load(tmp_path).collectives.to_dicts()
    assert (row["missing"], row["pending"], row["busy_ns"], row["algbw"]) == ([1], True, None, None)
    assert row["wait_ns"] == 2 * 2900 * MS


def test_processes_and_groups(tmp_path: Path) -> None:
    """One row per process, and one per member, seen or not."""
    one, _ = workers(tmp_path, 2)
    one.run(one.collective(one.world()), 100 * MS, MS, q=1)
    trace = disttrace.load(tmp_path)
    assert trace.processes["rank"].to_list() == [0, 1]
    members = trace.groups.select("rank", "process", "size", "default").rows()
    assert members == [(0, one.process, 2, True), (1, None, 2, True)]


def test_a_report_has_the_values_of_json(tmp_path: Path) -> None:
    """Every field of a finding as an attribute; text and page of it as the terminal shows it."""
    list(hang_without(tmp_path, 2, 1))
    report = disttrace.diagnose(tmp_path)
    values = report.to_dict()
    assert report.healthy is values["healthy"] is False
    (found,), (expected,) = report.findings, values["findings"]
    assert [field.name for field in dataclasses.fields(Finding)] == list(expected)
    shown = dataclasses.asdict(found)
    assert orjson.loads(orjson.dumps(shown)) == orjson.loads(orjson.dumps(expected))
    assert (found.kind, found.culprit_ranks) == ("missing_participant", (1,))
    assert isinstance(found.locations[0], Location)
    assert found.summary in str(report)
    assert found.kind in report._repr_html_()
    assert disttrace.load(tmp_path).findings == report.findings
    # Where each process is: in which operation, at which line.
    zero, one = report.positions
    assert (zero.rank, zero.op, zero.seq, zero.status) == (0, "all_reduce", 3, "in_flight")
    assert (one.rank, one.op, one.seq, one.status) == (1, "all_reduce", 2, "ok")
    assert str(zero.location) == "train.py:10"


def test_the_newest_job_is_taken_unless_another_is_named(tmp_path: Path) -> None:
    training(tmp_path)
    Journal(tmp_path, pid=9, job="old", t0=T0 // 2).begin(1, MS)
    assert disttrace.load(tmp_path).jobs == ("job",)
    assert disttrace.load([tmp_path], job="all").jobs == ("old", "job")
    with pytest.raises(ViewerError, match="--job x is no job here; there are: old, job"):
        disttrace.load(tmp_path, job="x")


@pytest.mark.parametrize("name", ["load", "diagnose", "stats"])
def test_without_the_extra_its_name_is_told(name: str) -> None:
    """An ImportError with what to install, where no package is."""
    code = f"import disttrace\ntry: disttrace.{name}('x')\nexcept ImportError as e: print(e)"
    told = python("-S", "-c", code).check().stdout
    assert re.fullmatch(
        rf"disttrace\.{name} needs (polars|rich|orjson), which is not installed;"
        r" get it by pip install 'disttrace\[viewer\]'\n",
        told,
    )


def test_frames_are_polars(tmp_path: Path) -> None:
    """Also of an empty job: the columns are there."""
    Journal(tmp_path, pid=1)
    trace = disttrace.load(tmp_path)
    for frame in (trace.operations, trace.collectives, trace.groups):
        assert isinstance(frame, pl.DataFrame)
        assert frame.is_empty()
    stats = disttrace.stats(tmp_path)
    assert stats.operations.is_empty()
    assert str(stats).startswith("Nothing was communicated.")
