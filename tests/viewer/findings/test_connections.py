"""A TCPStore serves one call at a time: what stands behind a thread that waits in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.journals import MS, Journal
from support.scenes import S, all_gone, beat, fail, findings, only, ranks, stand, steps


def store_call(journal: Journal, op: str, line: int, **keys: object) -> int:
    """A store operation under the prefix ``app``."""
    store = journal.prefix_store(1, "app", **keys)
    where = journal.stack(("train.py", line, "main"))
    return journal.call(f"store.{op}", kind="store", store=store, origin="python", stack=where)


def listening(folder: Path, **connection: int) -> None:
    """Every rank's thread waits for "stop"; then rank 0 sets a key that rank 1 gets."""
    for journal, _ in steps(folder, 2):
        thread = journal.numbered("thread", name="listen", native=7)
        wait = store_call(journal, "wait", 12, **connection)
        journal.begin(wait, 150 * MS, h=thread, k=["stop"])
        op, line = ("set", 20) if journal.rank == 0 else ("get", 21)
        journal.begin(store_call(journal, op, line), 200 * MS, k="ready")
        beat(journal, 20)


def test_calls_stand_behind_a_thread_that_waits(tmp_path: Path) -> None:
    """The key that the thread waits for is what holds up everybody."""
    listening(tmp_path)
    found = only(findings(tmp_path))
    assert (found.kind, found.key, found.culprits) == ("store_key_missing", "app/stop", ())
    assert ranks(tmp_path, found.waiting) == [0, 1]
    assert "has its process's connection to the store, behind which" in found.summary
    assert "store.set of rank 0 (train.py:20)" in found.summary
    assert "store.get of rank 1 (train.py:21)" in found.summary
    assert "serves one call at a time" in (found.hint or "")


def test_a_clone_has_a_connection_of_its_own(tmp_path: Path) -> None:
    """Then the set is on its way, the get waits for it, and the thread holds up nobody."""
    listening(tmp_path, connection=9)
    assert "store_key_missing" not in {f.kind for f in findings(tmp_path)}


def test_a_key_that_the_own_thread_would_set(tmp_path: Path) -> None:
    """The set stands behind the get of the same key: it never gets there."""
    for journal, _ in steps(tmp_path, 2):
        thread = journal.numbered("thread", name="prepare", native=7)
        if journal.rank == 1:
            journal.begin(store_call(journal, "get", 21), 200 * MS, k="ready")
            journal.begin(store_call(journal, "set", 30), 210 * MS, h=thread, k="ready")
        beat(journal, 20)
    found = only(findings(tmp_path))
    assert (found.kind, found.key, found.culprits) == ("store_key_missing", "app/ready", ())
    assert "behind which store.set of rank 1 (train.py:30) stands" in found.summary


@pytest.mark.parametrize("own", [True, False])
def test_a_group_is_not_made_behind_a_thread_that_waits(tmp_path: Path, *, own: bool) -> None:
    """Gloo's mesh sets its address over the same connection."""
    for journal, _ in steps(tmp_path, 2):
        thread = journal.numbered("thread", name="listen", native=7)
        keys = {} if own else {"connection": 9}
        journal.begin(store_call(journal, "wait", 12, **keys), 150 * MS, h=thread, k=["stop"])
        store = journal.prefix_store(1, "default_pg", "0/", "1/")
        where = journal.stack(("train.py", 15, "main"))
        outer = journal.call("new_group", kind="composed", origin="python", stack=where)
        make = journal.call(
            "ProcessGroupGloo", kind="constructor", store=store, origin="python", stack=where,
            args={"rank": journal.rank, "size": 2},
        )  # fmt: skip
        key = journal.call("store.set", kind="store", store=store, origin="c++", stack=where)
        begun = journal.begin(make, 200 * MS, p=journal.begin(outer, 199 * MS))
        journal.begin(key, 201 * MS, p=begun, k=f"0/{journal.rank}")
        beat(journal, 20)
    kinds = {f.kind: f for f in findings(tmp_path)}
    assert ("store_key_missing" in kinds) is own
    if own:
        assert "ProcessGroupGloo of ranks 0, 1 (train.py:15)" in kinds["store_key_missing"].summary


@pytest.mark.parametrize("same", [True, False])
def test_a_key_that_was_set_in_another_store(tmp_path: Path, *, same: bool) -> None:
    """Each rank has made a file of its own for what all should share."""
    for journal, _ in steps(tmp_path, 2):
        rank = journal.rank or 0
        path = "/tmp/shared" if same else f"/tmp/of{rank}"
        store = journal.numbered(
            "store", type="FileStore", name=f"file://{path}", base=None, prefix=[], path=path
        )
        calls = {"kind": "store", "store": store, "origin": "python"}
        journal.run(journal.call("store.set", **calls), 150 * MS, MS, k=f"config/{rank}")
        other = "config/0" if rank else "config/2"
        if rank or same:
            journal.begin(journal.call("store.get", **calls), 200 * MS, k=other)
        else:
            stand(journal, 3 * S, "/src/train.py", 60, "prepare")
        beat(journal, 20)
    found = findings(tmp_path)
    if same:
        assert "and nobody has set it; the nearest" in found[0].summary
        return
    assert (only(found).kind, found[0].culprits) == ("store_key_missing", ())
    assert "it there; rank 0 has set it in another store, file:///tmp/of0" in found[0].summary
    assert "Give all of them one store" in (found[0].hint or "")


def test_who_goes_on_meanwhile_is_not_told_as_idle(tmp_path: Path) -> None:
    """A spare rank waits for a message all day; the others train in a group of their own."""
    for journal, _ in steps(tmp_path, 3):
        if journal.rank == 2:
            journal.run(store_call(journal, "set", 11), 150 * MS, MS, k="s")
            journal.begin(store_call(journal, "wait", 12), 200 * MS, k=["stop"])
        else:
            mine = journal.group(name="1", ranks=[0, 1], size=2, default=False)
            call = journal.collective(mine)
            for n in range(1, 41):
                journal.run(call, n * S // 2, MS, q=n)
        beat(journal, 20)
    found = only(findings(tmp_path))
    assert (found.kind, found.certainty) == ("store_key_missing", "likely")
    assert "nearest key" not in found.summary  # all begin with the store's prefix
    assert "who use this store ranks 0, 1 communicate with others (all_reduce #40" in found.summary


@pytest.mark.parametrize("waited_s", [5, 15])
def test_a_wait_that_was_cut_off_with_its_store(tmp_path: Path, waited_s: int) -> None:
    """Rank 0, which serves the store, is killed first in a job that hangs; rank 2 sees its
    connection close, and had waited for another key. A short wait may have been about to end.
    """
    gone = "Failed to recv, got 0 bytes. Connection was likely closed."
    for journal, _ in steps(tmp_path, 3):
        key = "count/two" if journal.rank == 2 else "count/1"
        begun = journal.begin(store_call(journal, "wait", 12), 200 * MS, k=[key])
        beat(journal, waited_s)
        if journal.rank == 2:
            journal.end(begun, waited_s * S, x=journal.string(f"DistNetworkError: {gone}"))
            fail(journal, waited_s * S + 300 * MS, "DistNetworkError", gone)
    found = [f for f in findings(tmp_path, look=all_gone) if f.kind == "store_key_missing"]
    told = {f.key: ranks(tmp_path, f.waiting) for f in found}
    long = waited_s > 10
    assert told == ({"app/count/1": [0, 1], "app/count/two": [2]} if long else {})


@pytest.mark.parametrize("alike", [True, False])
def test_who_is_a_step_ahead_in_a_barrier_of_keys(tmp_path: Path, *, alike: bool) -> None:
    """All have counted themselves in, rank 2 at another number: one finding, and both sides."""
    for journal, _ in steps(tmp_path, 3):
        step = 1 if journal.rank != 2 else 2
        name = f"save{step}" if alike or step == 1 else "eval"
        journal.run(store_call(journal, "add", 11), 150 * MS, MS, k=f"{name}/count")
        journal.begin(store_call(journal, "wait", 12), 200 * MS, k=[f"{name}/go"])
        beat(journal, 20)
    found = findings(tmp_path)
    assert {f.kind for f in found} == {"store_key_missing"}
    assert [ranks(tmp_path, f.waiting) for f in found] == ([[0, 1, 2]] if alike else [[0, 1], [2]])
    assert [f.culprits for f in found] == [()] * len(found)
    told = "and nobody has set it; rank 2 waits for 'app/save2/go' (train.py:12)."
    assert found[0].summary.endswith(told) is alike
    assert (found[0].hint or "").startswith("These keys differ in a number only") is alike
