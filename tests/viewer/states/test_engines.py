"""Folders into states by each engine, also from object stores, and by records taken at once; and
engines under what is read as a whole: the same numbers as in one process.
"""

from __future__ import annotations

import dataclasses
import json
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import orjson
import pytest

from disttrace.cli import main
from disttrace_viewer.api import load
from disttrace_viewer.diagnosis import job
from disttrace_viewer.diagnosis.verdict import verdict
from disttrace_viewer.load import batch
from disttrace_viewer.load.definitions import Definitions
from disttrace_viewer.merge.reader import load as load_by
from disttrace_viewer.states import folder
from disttrace_viewer.states.folder import engine_of, here, local
from disttrace_viewer.states.reading import Reading
from disttrace_viewer.views.terminal.diagnosis import lines
from support.journals import bulk
from support.scenes import nobody_knows
from support.splits import differing_by_workers, drawn, findings, losing
from support.states import dies, hang


@pytest.mark.parametrize("batch", [1, 2, 5, 100])
def test_any_split_into_tasks_gives_the_findings_of_the_whole(tmp_path: Path, batch: int) -> None:
    """Whatever the order in which results come."""
    hang(tmp_path, size=7)
    whole = folder.of_journals([str(tmp_path)])

    split = folder.of_journals([str(tmp_path)], engine=drawn(batch), batch=batch)
    assert split == whole
    assert findings(split) == findings(whole)


def test_a_batch_that_ends_them_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The others are read; its journals are named, and nothing is certain."""
    monkeypatch.setattr(folder, "WORKERS", 2)
    assert sorted(local(dies, [0, 1, 2])) == [(0, 0), (1, None), (2, 2)]
    hang(tmp_path)

    def loses(function: Callable[[Any], Any], tasks: Sequence[Any]) -> Iterator[Any]:
        return ((n, None if n == 0 else r) for n, r in here(function, tasks))

    merged = folder.of_journals([str(tmp_path)], engine=loses, batch=1)
    assert len(merged.unread) == 1
    judged = verdict(merged, look=nobody_knows)
    assert all(found.certainty == "likely" for found in judged.findings)
    assert "two processes ended while" in "\n".join(lines(judged.case, judged.findings))


@pytest.mark.parametrize("by", ["a pool", "Dask"])
def test_a_worker_is_killed_in_mid_run(tmp_path: Path, by: str) -> None:
    """Another one does its batch, and the findings are those of the whole, as of each fault."""
    pytest.importorskip("distributed")
    hang(tmp_path, size=5)
    assert differing_by_workers(tmp_path, "a hang", by) == []


@pytest.mark.parametrize(
    ("address", "says"),
    [
        ("spark://h:1", "must be dask"),
        ("dask://127.0.0.1:1", "no Dask scheduler"),
        ("ray://h:1", "must be dask"),
    ],
)
def test_what_cannot_be_reached_is_a_sentence(
    tmp_path: Path, address: str, says: str, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """And exit code 2; never silently here instead."""
    monkeypatch.setattr(folder, "CONNECT_S", 1)
    hang(tmp_path)
    assert main(["diagnose", str(tmp_path), "--engine", address]) == 2
    said = capsys.readouterr().err
    assert says in said
    assert len(said.splitlines()) == 1


@pytest.mark.parametrize(("few", "pools"), [(job.FEW_BYTES, []), (0, [2])])
def test_few_suspects_are_read_in_this_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, few: int, pools: list[int]
) -> None:
    """The ends of journals make a verdict likely, and what decides it is then read. A pool takes
    longer to start than few of them to be read; others are shared by one.
    """
    hang(tmp_path, count=400)
    started: list[int] = []
    pool = folder._pool

    def counted(workers: int) -> ProcessPoolExecutor:
        started.append(workers)
        return pool(workers)

    for module, name, value in [
        (job, "WINDOW", 4_000), (job, "FEW_BYTES", few),
        (folder, "WORKERS", 2), (folder, "_pool", counted),
    ]:  # fmt: skip
        monkeypatch.setattr(module, name, value)
    (one,) = job.judged([str(tmp_path)], engine=engine_of(None)).findings
    assert (one.kind, one.certainty) == ("missing_participant", "certain")
    assert started == pools


fsspec = pytest.importorskip("fsspec")
URL = "memory://bucket/job"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Any]:
    """An object store with the journals of a hang, which are also below ``tmp_path``."""
    hang(tmp_path, count=400)
    system = fsspec.filesystem("memory")
    for path in tmp_path.iterdir():
        system.pipe_file(f"/bucket/job/{path.name}", path.read_bytes())
    yield system
    system.rm("/bucket", recursive=True)


def test_the_findings_are_those_of_a_folder(store: Any, tmp_path: Path) -> None:
    found = folder.of_journals([URL])
    assert findings(found) == findings(folder.of_journals([str(tmp_path)]))


def test_only_ranges_are_fetched(
    store: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of segments the head and the end; those of the suspects as a whole."""
    monkeypatch.setattr(job, "WINDOW", 4_000)
    monkeypatch.setattr(job, "MOST_SUSPECTS", 0)
    fetched: dict[str, int] = {}
    cat_file = type(store).cat_file

    def counted(self: Any, path: str, start: int | None = None, end: int | None = None) -> Any:
        found = cat_file(self, path, start=start, end=end)
        fetched[path] = fetched.get(path, 0) + len(found)
        return found

    monkeypatch.setattr(type(store), "cat_file", counted)
    monkeypatch.setattr(sys.modules["disttrace_viewer.states.reduce"], "HEAD", 2_000)
    assert main(["diagnose", URL]) == 1
    assert capsys.readouterr().out.startswith("1. ERROR missing_participant, likely: Rank 3")
    segments = [path for path in fetched if path.endswith("ops.jsonl")]
    assert len(segments) == 4
    for path in segments:
        assert fetched[path] <= 1_024 + 2_000 + 4_000 < store.info(path)["size"]


def test_states_in_a_store(store: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reduce", URL, "-o", str(tmp_path / "states")]) == 0
    for path in (tmp_path / "states").iterdir():
        store.pipe_file(f"/bucket/states/{path.name}", path.read_bytes())
    assert main(["diagnose", "memory://bucket/states"]) == 1
    assert "Rank 3 never joined" in capsys.readouterr().out


@pytest.mark.parametrize("url", ["nosuch://bucket/job", "memory://bucket/nothing"])
def test_what_is_unread_is_told(store: Any, url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diagnose", url]) == 2
    said = capsys.readouterr().err
    assert url.partition("/bucket")[0] in said
    assert len(said.splitlines()) == 1


def test_an_object_that_fails_is_named(
    store: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever exceptions a store has: the others are read."""
    cat_file = type(store).cat_file

    def fails(self: Any, path: str, start: int | None = None, end: int | None = None) -> Any:
        if path.endswith("defs.jsonl") and path == sorted(store.find("/bucket/job"))[1]:
            raise RuntimeError("slow down\nplease")
        return cat_file(self, path, start=start, end=end)

    monkeypatch.setattr(type(store), "cat_file", fails)
    main(["diagnose", URL])
    assert "cannot be read (slow down)" in capsys.readouterr().out


CALLS: tuple[tuple[str, str, dict[str, object]], ...] = (
    ("collective", "all_reduce", {"group": 1, "backend": "gloo", "stack": 1}),
    ("collective", "broadcast", {"group": 1, "backend": "gloo", "stack": 2}),
    ("collective", "all_reduce", {"group": 2, "backend": "gloo", "stack": 1}),
    ("message", "recv", {"group": 1, "backend": "gloo", "peer": 0}),
    ("store", "store.get", {"store": 1}),
    ("composed", "new_group", {}),
    ("constructor", "TCPStore", {"store": 1}),
)


def definitions() -> Definitions:
    """Of seven calls, as many as there are kinds of what is kept."""
    found = Definitions()
    for number, (kind, op, keys) in enumerate(CALLS, 1):
        found.add({"def": "call", "n": number, "kind": kind, "op": op, **keys})
    return found


def of_lines(seed: int) -> list[bytes]:
    """Operations one in another, in two threads, some asynchronous, and some not over."""
    drawn = random.Random(seed)
    found: list[dict[str, object]] = [{"seg": 1, "format": 1, "process": "a" * 32, "t": 1}]
    numbers: dict[object, int] = {}
    opened: list[int] = []
    odd = seed % 3 == 0
    for number in range(1, 200):
        call = drawn.choice((1, 1, 1, 2, 3, 4, 5, 6, 7) if number < 60 else (1, 1, 2, 3, 4))
        begin: dict[str, object] = {"b": number, "t": 1000 * number, "s": call}
        if drawn.random() < 0.1:
            begin["h"] = 1
        if opened and drawn.random() < 0.3:
            begin["p"] = opened[-1]
        if call < 5:
            stream = CALLS[call - 1][2].get("group"), call == 4
            begin["q"] = numbers[stream] = numbers.get(stream, 0) + 1
        elif call == 5:
            begin["k"] = drawn.choice(("a", ["a", "b"]))
        found.append(begin)
        opened.append(number)
        if drawn.random() < 0.2:
            found.append({"i": number, "d": 10})
            found.append({"w": number, "d": 20})
        if odd and drawn.random() < 0.05:
            found.append({"c": number, "d": 30})
        while opened and drawn.random() < 0.6:
            end: dict[str, object] = {"e": opened.pop(), "d": drawn.randint(30, 5000)}
            times: tuple[dict[str, object], ...] = ({}, {"u": 5}, {"v": 7}, {"u": 5, "v": 7})
            end |= drawn.choice(times)
            if odd and drawn.random() < 0.1:
                more: tuple[dict[str, object], ...] = ({"x": 1}, {"y": 2}, {"x": 1, "f": 1})
                end |= drawn.choice(more)
            found.append(end)
        if drawn.random() < 0.05:
            found.append({"hb": 1000 * number} if number % 2 else {"at": 1000 * number, "k": 1})
    return [orjson.dumps(record) for record in found]


def taken(pieces: list[list[bytes]]) -> dict[str, object]:
    """What is kept of a segment's pieces; clocks are set by the newest exchanges of a read."""
    found = Reading(definitions())
    for piece in pieces:
        found.take(b"\n".join(piece) + b"\n")
    kept = {f.name: getattr(found, f.name) for f in dataclasses.fields(Reading)}
    return {
        name: value
        for name, value in kept.items()
        if not name.startswith("_") and name not in ("definitions", "met")
    }


@pytest.mark.parametrize("seed", range(30))
def test_many_lines_at_once_are_as_one_after_the_other(seed: int) -> None:
    segment = of_lines(seed)
    at = random.Random(seed).randint(1, len(segment) - 1)
    assert taken([segment[:at], segment[at:]]) == taken([[line] for line in segment])


@pytest.mark.parametrize(
    "line", [b'{"e":1,"d":99999999999999999999}', b'{"b":3,"t":99999999999999999999,"s":1}']
)
def test_a_number_beyond_64_bits_is_counted_as_unreadable(line: bytes) -> None:
    found = taken([[b'{"b":1,"t":5,"s":1}', line, b'{"b":2,"t":6,"s":1}']])
    assert (found["count"], found["bad"]) == (2, 1)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch, "BATCH_BYTES", 1)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("by", ["a pool", "Dask"])
def test_a_worker_that_reads_for_a_table_is_killed(tmp_path: Path, by: str) -> None:
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


@pytest.mark.usefixtures("small")
def test_what_was_lost_twice_is_named(tmp_path: Path) -> None:
    bulk(tmp_path, 800, 4)
    loses = lambda function, tasks: ((n, r if n else None) for n, r in drawn(1)(function, tasks))  # noqa: E731
    found = load_by([str(tmp_path)], engine=loses)
    assert found.operations.height == 600
    assert {one.kind for one in found.problems} == {"unreadable"}
    assert "two processes ended while they read it" in found.problems[0].sentence


@pytest.mark.usefixtures("small")
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
        assert (
            load(str(tmp_path), engine=by)
            .stats()
            .operations.equals(load(str(tmp_path)).stats().operations)
        )
    assert main(["stats", str(tmp_path), "--json"]) == 0
    assert json.loads(there) == json.loads(capsys.readouterr().out)
