"""A first call of NCCL takes long while all are in it: a note, and a stall only after long."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from disttrace_viewer.diagnosis.report import healthy
from disttrace_viewer.findings.rules.communicator_creation import is_start
from support.journals import MS, Journal, S, workers
from support.scenes import alive, all_gone, findings, finds, only, ranks, steps

NCCL: dict[str, Any] = {"backends": {"cuda": "nccl"}}
ON_DEVICE: dict[str, Any] = {"backend": "nccl", "device": "cuda"}


def group_of(journal: Journal, size: int = 3, **keys: Any) -> int:
    """The default group, on NCCL with its time-out of ten minutes."""
    store = journal.prefix_store(journal.tcp_store(server=journal.rank == 0), "default_pg", "0/")
    return journal.group(store, size=size, **{**NCCL, "timeout": 600 * S, **keys})


def first_call(
    folder: Path, seconds: int, *, op: str = "all_reduce", ranks: int = 3, late_s: int = 2,
    **keys: Any,
) -> None:  # fmt: skip
    """Ranks in their first collective since one second; the last one has come ``late_s``."""
    for journal in alive(workers(folder, ranks), seconds + 1):
        call = journal.collective(group_of(journal, ranks, **keys), op, **ON_DEVICE)
        journal.begin(call, S * (late_s if journal.rank == ranks - 1 else 1), q=1)


@pytest.mark.parametrize("seconds", [12, 40, 120])
@pytest.mark.parametrize("op", ["all_reduce", "barrier"])
def test_all_are_in_the_first_call_of_a_group(tmp_path: Path, seconds: int, op: str) -> None:
    """Nothing is wrong, and the sentence says what goes on."""
    first_call(tmp_path, seconds, op=op)
    found = only(findings(tmp_path))
    assert (found.severity, found.culprits, is_start(found)) == ("note", (), True)
    assert healthy([found])
    assert "NCCL makes the communicator of the default group" in found.summary
    assert "all members are in it" in found.summary
    assert f"{seconds - 2} s so far" in found.summary  # since the last one came


def test_who_is_missing_is_told_at_the_limit(tmp_path: Path) -> None:
    """A member that has not entered the call is no part of a creation."""
    for journal in alive(workers(tmp_path, 3), 13):
        call = journal.collective(group_of(journal), **ON_DEVICE)
        if journal.rank != 1:
            journal.begin(call, S, q=1)
    finds(tmp_path, "missing_participant", [1], severity="error")


@pytest.mark.parametrize(
    ("seconds", "keys", "severity"),
    [
        (155, {}, "error"),
        (1700, {"timeout": 7200 * S}, "note"),
        (20, {"timeout": 60 * S}, "error"),
        (199, {"late_s": 100}, "note"),
    ],
    ids=["150 s by the default", "of two hours", "of a minute", "since the last one has come"],
)
def test_after_a_quarter_of_the_groups_time_out_it_is_a_stall(
    tmp_path: Path, seconds: int, keys: dict[str, Any], severity: str
) -> None:
    first_call(tmp_path, seconds, ranks=2, **keys)
    found = finds(tmp_path, "no_progress", severity=severity)
    assert is_start(found) is (severity == "note")
    assert ("100 s so far" in found.summary) is ("late_s" in keys)


@pytest.mark.parametrize(("out", "severity"), [([0], "note"), ([0, 1, 2], "error")])
def test_who_has_come_out_of_the_call(tmp_path: Path, out: list[int], severity: str) -> None:
    """Devices wait for those that are still in it; once all are out, what hangs is the device."""
    for journal in alive(workers(tmp_path, 3), 40):
        number = journal.begin(journal.collective(group_of(journal), **ON_DEVICE), S, q=1)
        if journal.rank in out:
            journal.record(i=number, d=2 * S)
    assert only(findings(tmp_path)).severity == severity


def test_a_first_exchange_of_a_pair(tmp_path: Path) -> None:
    """NCCL makes a communicator for each pair."""
    for journal in alive(workers(tmp_path, 2), 40):
        group = group_of(journal, 2)
        journal.run(journal.collective(group, **ON_DEVICE), S, MS, q=1)
        op, peer = ("send", 1) if journal.rank == 0 else ("recv", 0)
        journal.begin(journal.message(group, op, peer, **ON_DEVICE), 2 * S, q=1)
    found = only(findings(tmp_path))
    assert found.severity == "note"
    assert "of the pair of ranks 0, 1: 38 s so far, both are in it" in found.summary


@pytest.mark.parametrize(("op", "before", "severity"), [
    ("all_gather", False, "note"),
    ("all_gather", True, "error"),
    ("barrier", False, "error"),
])  # fmt: skip
def test_a_first_operation_of_a_sort(tmp_path: Path, op: str, before: bool, severity: str) -> None:
    """Kernels are loaded when they are first launched; a barrier's call waits for the device."""
    for journal in alive(workers(tmp_path, 2), 40):
        group = group_of(journal, 2)
        journal.run(journal.collective(group, **ON_DEVICE), S, MS, q=1)
        call = journal.collective(group, op, **ON_DEVICE)
        if before:
            journal.run(call, 2 * S, MS, q=2)
        journal.begin(call, 3 * S, q=2 + before)
    assert only(findings(tmp_path)).severity == severity


@pytest.mark.parametrize("op", ["init_process_group", "new_group", "split_group"])
@pytest.mark.parametrize("everybody", [True, False])
def test_calls_that_connect_members_themselves(tmp_path: Path, op: str, everybody: bool) -> None:
    """A group that is bound to a device is connected when it is made."""
    for journal in alive(workers(tmp_path, 2), 40):
        args: dict[str, Any] = {"device_id": f"cuda:{journal.rank}"}
        if op == "init_process_group":
            args["backend"] = "nccl"
        else:
            group_of(journal, 2, ranks=[0, 1], default=True)
        if op == "new_group":
            args["ranks"] = [0, 1]
        if everybody or journal.rank == 0:
            journal.begin(journal.call(op, kind="composed", args=args, origin="python"), S)
    found = findings(tmp_path)
    if everybody:
        assert (only(found).severity, is_start(found[0])) == ("note", True)
        assert "NCCL makes the communicator of the" in found[0].summary
    else:
        assert [f.severity for f in found if f.severity == "error"] != []


def test_on_gloo_nothing_is_made_in_a_first_call(tmp_path: Path) -> None:
    """Its members are connected when the group is made."""
    for journal, group in alive(steps(tmp_path, 2, 0), 40):
        journal.begin(journal.collective(group), S, q=1)
    assert only(findings(tmp_path)).severity == "error"


def test_whoever_waits_for_them_is_no_fault_either(tmp_path: Path) -> None:
    """Ranks 0 and 1 make the communicator of their own group, and rank 2 waits for them."""
    for journal in alive(workers(tmp_path, 3), 60):
        world = group_of(journal)
        if journal.rank == 2:
            journal.issue(journal.collective(world, **ON_DEVICE), S, q=1, d=MS)
        else:
            store = journal.prefix_store(1, "own")
            own = journal.group(store, name="own", ranks=[0, 1], size=2, **NCCL)
            journal.begin(journal.collective(own, **ON_DEVICE), S, q=1)
    found = only(findings(tmp_path))
    assert (found.severity, is_start(found)) == ("note", True)
    assert any("Rank 2" in text for text in found.consequences)


def test_somebody_missing_elsewhere_is_told(tmp_path: Path) -> None:
    """A creation hides nothing that has nothing to do with it."""
    for journal in alive(workers(tmp_path, 4), 40):
        pair = [0, 1] if (journal.rank or 0) < 2 else [2, 3]
        group = journal.group(
            journal.prefix_store(journal.tcp_store(server=journal.rank == 0), f"{pair}"),
            name=f"{pair}", ranks=pair, size=2, rank=(journal.rank or 0) % 2, default=False, **NCCL,
        )  # fmt: skip
        if journal.rank != 3:
            journal.begin(journal.collective(group, **ON_DEVICE), S, q=1)
    found = findings(tmp_path)
    told = [(f.kind, f.severity) for f in found]
    assert told == [("missing_participant", "error"), ("no_progress", "note")]
    assert ranks(tmp_path, found[0].culprits) == [3]


def test_a_member_that_stopped_running_is_named(tmp_path: Path) -> None:
    """All have come, and one of them has frozen since."""
    for journal in workers(tmp_path, 2):
        journal.begin(journal.collective(group_of(journal, 2), **ON_DEVICE), S, q=1)
        journal.beat(60 if journal.rank == 0 else 4)
    found = only(findings(tmp_path))
    assert found.severity == "error"
    assert ranks(tmp_path, found.culprits) == [1]


def replaying(folder: Path, *graphs: list[str]) -> None:
    """A rank for each list of what it replays; no device is through the last of the longest."""
    most = max(map(len, graphs))
    for journal, names in zip(workers(folder, len(graphs)), graphs, strict=True):
        group = journal.world()
        for number, name in enumerate(names, 1):
            call = journal.collective(
                group, f"graph_replay({name})", backend="graph", device="cuda",
                asynchronous=True, shapes=None, dtypes=None, bytes=None,
            )  # fmt: skip
            one = journal.issue(call, number * S, q=number, d=MS)
            if number < most:
                journal.record(c=one, d=2 * MS)
        journal.beat(40)


TWO, THREE = "2 all_reduce", "3 all_reduce"


@pytest.mark.parametrize(("graphs", "kind", "culprits"), [
    ([[TWO] * 3, [TWO] * 3, [TWO] * 2], "missing_participant", [2]),
    ([[TWO], [TWO], [THREE]], "op_mismatch", [2]),
    ([[TWO], [TWO]], "no_progress", []),
])  # fmt: skip
def test_replays(tmp_path: Path, graphs: list[list[str]], kind: str, culprits: list[int]) -> None:
    """One less, another graph, or all the same, and no device gets on."""
    replaying(tmp_path, *graphs)
    found, *more = findings(tmp_path)
    assert (found.kind, ranks(tmp_path, found.culprits)) == (kind, culprits)
    assert not more or kind == "missing_participant"


def listening(folder: Path, **connection: Any) -> None:
    """Every rank's thread waits for "stop"; then rank 0 sets a key that rank 1 gets."""
    for journal, _ in alive(steps(folder, 2)):
        thread = journal.numbered("thread", name="listen", native=7)
        wait = journal.store_call("wait", 12, **connection)
        journal.begin(wait, 150 * MS, h=thread, k=["stop"])
        op, line = ("set", 20) if journal.rank == 0 else ("get", 21)
        journal.begin(journal.store_call(op, line), 200 * MS, k="ready")


def test_calls_stand_behind_a_thread_that_waits(tmp_path: Path) -> None:
    """The key that the thread waits for is what holds up everybody."""
    listening(tmp_path)
    found = only(findings(tmp_path))
    assert (found.kind, found.key, found.culprits) == ("store_key_missing", "app/stop", ())
    assert ranks(tmp_path, found.waiting) == [0, 1]
    assert "holds its process's connection to the store, for which" in found.summary
    assert "store.set of rank 0 (train.py:20)" in found.summary
    assert "store.get of rank 1 (train.py:21)" in found.summary
    assert "serves one call at a time" in (found.hint or "")
    # Then the set is on its way, the get waits for it, and the thread holds up nobody.
    listening(tmp_path / "clone", connection=9)
    assert "store_key_missing" not in {f.kind for f in findings(tmp_path / "clone")}


def test_a_key_that_the_own_thread_would_set(tmp_path: Path) -> None:
    """The set stands behind the get of the same key: it never gets there."""
    for journal, _ in alive(steps(tmp_path, 2)):
        thread = journal.numbered("thread", name="prepare", native=7)
        if journal.rank == 1:
            journal.begin(journal.store_call("get", 21), 200 * MS, k="ready")
            journal.begin(journal.store_call("set", 30), 210 * MS, h=thread, k="ready")
    found = only(findings(tmp_path))
    assert (found.kind, found.key, found.culprits) == ("store_key_missing", "app/ready", ())
    assert "for which store.set of rank 1 (train.py:30) waits" in found.summary


@pytest.mark.parametrize("own", [True, False])
def test_a_group_is_not_made_behind_a_thread_that_waits(tmp_path: Path, *, own: bool) -> None:
    """Gloo's mesh sets its address over the same connection."""
    for journal, _ in alive(steps(tmp_path, 2)):
        thread = journal.numbered("thread", name="listen", native=7)
        keys: dict[str, Any] = {} if own else {"connection": 9}
        journal.begin(journal.store_call("wait", 12, **keys), 150 * MS, h=thread, k=["stop"])
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
    kinds = {f.kind: f for f in findings(tmp_path)}
    assert ("store_key_missing" in kinds) is own
    if own:
        assert "ProcessGroupGloo of ranks 0, 1 (train.py:15)" in kinds["store_key_missing"].summary


@pytest.mark.parametrize("same", [True, False])
def test_a_key_that_was_set_in_another_store(tmp_path: Path, *, same: bool) -> None:
    """Each rank has made a file of its own for what all should share."""
    for journal, _ in alive(steps(tmp_path, 2)):
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
            journal.stand(3 * S, "/src/train.py", 60, "prepare")
    found = findings(tmp_path)
    if same:
        assert "and nobody has set it; the nearest" in found[0].summary
        return
    assert (only(found).kind, found[0].culprits) == ("store_key_missing", ())
    assert "it there; rank 0 has set it in another store, file:///tmp/of0" in found[0].summary
    assert "Give all of them one store" in (found[0].hint or "")


def test_who_goes_on_meanwhile_is_not_told_as_idle(tmp_path: Path) -> None:
    """A spare rank waits for a message all day; the others train in a group of their own."""
    for journal, _ in alive(steps(tmp_path, 3)):
        if journal.rank == 2:
            journal.run(journal.store_call("set", 11), 150 * MS, MS, k="s")
            journal.begin(journal.store_call("wait", 12), 200 * MS, k=["stop"])
        else:
            mine = journal.group(name="1", ranks=[0, 1], size=2, default=False)
            call = journal.collective(mine)
            for n in range(1, 41):
                journal.run(call, n * S // 2, MS, q=n)
    found = finds(tmp_path, "store_key_missing", certainty="likely")
    assert "nearest key" not in found.summary  # all begin with the store's prefix
    assert "who use this store ranks 0, 1 communicate with others (all_reduce #40" in found.summary


@pytest.mark.parametrize("waited_s", [5, 15])
def test_a_wait_that_was_cut_off_with_its_store(tmp_path: Path, waited_s: int) -> None:
    """Rank 0 serves it and is killed first; rank 2 had waited for another key, maybe briefly."""
    gone = "Failed to recv, got 0 bytes. Connection was likely closed."
    for journal, _ in steps(tmp_path, 3):
        key = "count/two" if journal.rank == 2 else "count/1"
        begun = journal.begin(journal.store_call("wait", 12), 200 * MS, k=[key])
        journal.beat(waited_s)
        if journal.rank == 2:
            journal.end(begun, waited_s * S, x=journal.string(f"DistNetworkError: {gone}"))
            journal.fail(waited_s * S + 300 * MS, "DistNetworkError", gone)
    found = [f for f in findings(tmp_path, look=all_gone) if f.kind == "store_key_missing"]
    told = {f.key: ranks(tmp_path, f.waiting) for f in found}
    long = waited_s > 10
    assert told == ({"app/count/1": [0, 1], "app/count/two": [2]} if long else {})


@pytest.mark.parametrize("alike", [True, False])
def test_who_is_a_step_ahead_in_a_barrier_of_keys(tmp_path: Path, *, alike: bool) -> None:
    """All have counted themselves in, rank 2 at another number: one finding, and both sides."""
    for journal, _ in alive(steps(tmp_path, 3)):
        step = 1 if journal.rank != 2 else 2
        name = f"save{step}" if alike or step == 1 else "eval"
        journal.run(journal.store_call("add", 11), 150 * MS, MS, k=f"{name}/count")
        journal.begin(journal.store_call("wait", 12), 200 * MS, k=[f"{name}/go"])
    found = findings(tmp_path)
    assert {f.kind for f in found} == {"store_key_missing"}
    assert [ranks(tmp_path, f.waiting) for f in found] == ([[0, 1, 2]] if alike else [[0, 1], [2]])
    assert [f.culprits for f in found] == [()] * len(found)
    told = "and nobody has set it; rank 2 waits for 'app/save2/go' (train.py:12)."
    assert found[0].summary.endswith(told) is alike
    assert (found[0].hint or "").startswith("These keys differ in a number only") is alike
