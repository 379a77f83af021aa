"""The export by its contract, field by field."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import orjson
import pytest

from disttrace_viewer.commands import export
from disttrace_viewer.merge.reader import load
from disttrace_viewer.views import jsonl
from support.journals import MS, T0, UNIX_NS, Journal, training, workers

CONTRACT = [
    "id", "parent", "job", "process", "role", "host", "pid", "attempt", "thread", "rank",
    "local_rank", "op", "group", "group_name", "group_ranks", "group_rank", "backend", "device",
    "seq", "begin_ns", "issued_ns", "wait_begin_ns", "wait_end_ns", "complete_ns", "end_ns",
    "status", "error", "async", "bytes", "shapes", "dtypes", "splits", "reduce_op", "root",
    "root_group_rank", "peer", "peer_group_rank", "tag", "key", "store", "name", "origin", "stack",
    "args",
]  # fmt: skip


def exported(folder: Path) -> list[dict[str, Any]]:
    trace = load([str(folder)])
    return [orjson.loads(line) for line in b"".join(jsonl.lines(trace)).splitlines()]


def test_every_object_has_every_field_in_the_order_of_the_contract(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where nothing applies."""
    training(tmp_path, 2, 5)
    found = exported(tmp_path)
    assert len(found) == 10
    assert all(list(each) == CONTRACT for each in found)
    begins = [each["begin_ns"] for each in found]
    assert begins == sorted(begins)
    # Ten million operations are never in memory as text at once.
    monkeypatch.setattr(jsonl, "CHUNK_ROWS", 3)
    pieces = list(jsonl.lines(load([str(tmp_path)])))
    assert [piece.count(b"\n") for piece in pieces] == [1] * 10


def test_a_synchronous_collective(tmp_path: Path) -> None:
    """Issued and waited for inside one call."""
    journals = workers(tmp_path, 2)
    for journal in journals:
        group = journal.world()
        call = journal.collective(group, "broadcast", root=1, reduce_op=None, splits=[[1], [2]])
        journal.run(call, MS, 1000, q=1)
    first = exported(tmp_path)[0]
    journal = next(j for j in journals if j.process == first["process"])
    assert first["id"].rpartition(".")[2] == "1"
    assert first == {
        **first, "parent": None, "job": "job", "role": "worker", "host": "host", "pid": journal.pid,
        "attempt": 0, "thread": 0, "rank": journal.rank, "local_rank": None, "op": "broadcast",
        "group_name": "0", "group_ranks": [0, 1], "group_rank": journal.rank, "backend": "gloo",
        "device": "cpu", "seq": 1, "begin_ns": UNIX_NS + MS, "issued_ns": UNIX_NS + MS + 100,
        "wait_begin_ns": UNIX_NS + MS + 100, "wait_end_ns": UNIX_NS + MS + 1000,
        "complete_ns": UNIX_NS + MS + 1000, "end_ns": UNIX_NS + MS + 1000, "status": "ok",
        "error": None, "async": False, "bytes": 16, "shapes": [[4]], "dtypes": ["float32"],
        "splits": [[1], [2]], "reduce_op": None, "root": 1, "root_group_rank": 1, "peer": None,
        "peer_group_rank": None, "tag": None, "key": None, "store": None, "name": None,
        "origin": "python", "stack": [["train.py", 10, "main"]], "args": {},
    }  # fmt: skip


def subgroup(folder: Path) -> tuple[Journal, int]:
    """A worker in a group of the global ranks 4 and 7, where it is the second."""
    (journal,) = workers(folder, 1)
    base = journal.tcp_store(29500, server=True)
    group = journal.group(
        journal.prefix_store(base, "1/"), name="1", ranks=[4, 7], rank=1, size=2, default=False
    )
    return journal, group


def test_peers_and_roots_are_global_and_in_the_group(tmp_path: Path) -> None:
    """Global ranks come from the group's members; without them they are null."""
    journal, group = subgroup(tmp_path)
    bare = journal.group(None, name="bare", ranks=None, rank=0, size=2, default=False)
    journal.run(journal.message(group, "send", 0, tag=3), MS, 10, q=1)
    journal.run(journal.collective(group, "broadcast", root=0), 2 * MS, 10, q=1)
    journal.run(journal.message(bare, "recv", 1), 3 * MS, 10, q=1)
    send, cast, received = exported(tmp_path)
    assert (send["peer"], send["peer_group_rank"], send["tag"]) == (4, 0, 3)
    assert (cast["root"], cast["root_group_rank"], cast["group_rank"]) == (4, 0, 1)
    assert (received["peer"], received["peer_group_rank"]) == (None, 1)
    assert (received["group_ranks"], received["group_rank"]) == (None, 0)


def test_a_receive_from_any_source_gets_its_peer_at_the_end(tmp_path: Path) -> None:
    """Peer and number are null until the source is known."""
    journal, group = subgroup(tmp_path)
    call = journal.message(group, "recv", None)
    journal.end(journal.begin(call, MS), 500, q=1, y=0)
    journal.begin(call, 2 * MS)
    known, open_ = exported(tmp_path)
    assert (known["peer"], known["peer_group_rank"], known["seq"]) == (4, 0, 1)
    assert (open_["peer"], open_["peer_group_rank"], open_["seq"]) == (None, None, None)


def test_asynchronous_work_by_its_records(tmp_path: Path) -> None:
    """Waited for; seen complete by somebody else; lost; in flight; failed."""
    (journal,) = workers(tmp_path, 1)
    call = journal.collective(journal.world(), asynchronous=True)
    waited, seen, lost, flying, failed = (journal.begin(call, i * MS, q=i) for i in range(1, 6))
    for n in (waited, seen, lost, flying):
        journal.record(i=n, d=10)
    journal.record(w=waited, d=20)
    journal.end(waited, 30)
    journal.record(c=seen, d=40, g=5)
    journal.record(l=lost, d=50)
    journal.end(failed, 60, x=journal.string("RuntimeError: gone"))
    found = exported(tmp_path)
    names = ("issued_ns", "wait_begin_ns", "wait_end_ns", "complete_ns", "end_ns")
    times = [
        [None if each[name] is None else each[name] - each["begin_ns"] for name in names]
        for each in found
    ]
    assert times == [
        [10, 20, 30, 30, 30], [10, None, None, 40, 40], [10, None, None, None, None],
        [10, None, None, None, None], [None, None, None, None, 60],
    ]  # fmt: skip
    assert [each["status"] for each in found] == ["ok", "ok", "in_flight", "in_flight", "error"]
    assert [each["error"] for each in found] == [None] * 4 + ["RuntimeError: gone"]
    completion = load([str(tmp_path)]).completions.row(0, named=True)
    assert (completion["number"], completion["slack_ns"]) == (seen, 5)


def test_keys_bear_every_prefix(tmp_path: Path) -> None:
    """A list for operations on several keys, ``?`` for a prefix that is not known."""
    (journal,) = workers(tmp_path, 1)
    base = journal.tcp_store(29500, server=True)
    store = journal.prefix_store(base, "default_pg", "0/", "cpu/", name="tcp://127.0.0.1:29500")
    unknown = journal.prefix_store(base, None, "x")
    get = journal.call("store.get", kind="store", store=store)
    journal.run(get, MS, 10, k="0/1", n=7)
    journal.run(journal.call("store.wait", kind="store", store=unknown), 2 * MS, 10, k=["a", "b"])
    journal.run(journal.call("store.wait", kind="store", store=base), 3 * MS, 10, k=["a"])
    found = exported(tmp_path)
    assert [each["key"] for each in found] == ["default_pg/0//cpu//0/1", ["?/x/a", "?/x/b"], ["a"]]
    assert (found[0]["bytes"], found[0]["store"]) == (7, "tcp://127.0.0.1:29500")


def test_parents_and_overrides(tmp_path: Path) -> None:
    """``parent`` is an id; ``a`` completes the call's fields for one operation."""
    (journal,) = workers(tmp_path, 1)
    group = journal.world()
    outer = journal.begin(journal.call("all_gather_object", kind="composed"), MS)
    call = journal.collective(group, args={"timeout": 5})
    more = {"shapes": [[7]], "bytes": 28, "args": {"extra": 1}}
    journal.begin(call, 2 * MS, q=1, p=outer, h=3, a=more)
    above, below = exported(tmp_path)
    assert below["parent"] == above["id"]
    assert (below["shapes"], below["bytes"], below["dtypes"]) == ([[7]], 28, ["float32"])
    assert below["args"] == {"timeout": 5, "extra": 1}
    assert (above["thread"], below["thread"]) == (0, 3)


def test_ids_are_longer_where_short_ones_are_ambiguous(tmp_path: Path) -> None:
    """Two processes whose ids begin alike."""
    for pid, tail in ((1, "0" * 24), (2, "1" * 24)):
        journal = Journal(tmp_path, pid=pid, process="abcdefab" + tail)
        journal.begin(journal.call("new_group", kind="composed"), MS)
    found = exported(tmp_path)
    assert sorted(each["id"] for each in found) == ["abcdefab0000.1", "abcdefab1111.1"]


def run(*argv: str) -> int:
    parser = argparse.ArgumentParser()
    export.add_arguments(parser)
    return export.execute(parser.parse_args(argv))


def test_the_command_writes_the_newest_job_or_the_one_that_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """A complete file or none; nothing else stays beside it. Of the default folder as well."""
    training(tmp_path / "in", 2, 3)
    Journal(tmp_path / "in", pid=9, job="other", t0=T0 // 2).begin(1, MS)
    target = tmp_path / "out.jsonl"
    for options, lines in (((), 6), (("--job", "all"), 7), (("--job", "other"), 1)):
        assert run(str(tmp_path / "in"), *options, "-o", str(target)) == 0
        assert len(target.read_bytes().splitlines()) == lines
    assert sorted(p.name for p in tmp_path.iterdir()) == ["in", "out.jsonl"]
    monkeypatch.setenv("DISTTRACE_DIR", str(tmp_path / "in"))
    assert run() == 0
    assert len(capfdbinary.readouterr().out.splitlines()) == 6
