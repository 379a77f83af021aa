"""Cycles through keys of a store: only where nobody else could set what is awaited."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from disttrace_viewer.findings.finding import RuleFinding
from support.journals import MS, Journal, S
from support.scenes import act, alive, findings, finds, only, ranks, steps


def job(
    folder: Path, sets: Mapping[int, Sequence[str]], awaited: dict[int, str], *,
    deleted: Sequence[str] = (), sleeping: Sequence[int] = (), tries: int = 0, mesh: bool = False,
    world_size: int = 2,
) -> list[RuleFinding]:  # fmt: skip
    """Ranks set keys; then some await one, some stand elsewhere, and the others are in a barrier.

    Rank 0 deletes the ``deleted`` ones, after they were set. With ``tries`` a key is awaited so
    often for a second each; with ``mesh`` the barrier's group is made before it, which sets keys.
    """
    for journal, group in alive(steps(folder, world_size)):
        rank = journal.rank or 0
        for n, key in enumerate(sets.get(rank, ())):
            journal.run(journal.store_call("set", 40), t=(150 + n) * MS + rank, d=MS // 2, k=key)
        for key in deleted if rank == 0 else ():
            journal.run(journal.store_call("delete_key", 41), t=180 * MS, d=MS, k=key)
        if rank in awaited and tries:
            call = journal.store_call("get", 50)
            text = journal.string("torch.distributed.DistStoreError: wait timeout after 1000ms")
            for n in range(tries):
                journal.run(call, 200 * MS + n * S, S - MS, k=awaited[rank], x=text)
        elif rank in awaited:
            journal.begin(journal.store_call("get", 50), 200 * MS, k=awaited[rank])
        elif rank in sleeping:
            journal.stand(3 * S, "/src/train.py", 60, "prepare")
        else:
            for _ in range(mesh):
                outer = journal.run(journal.call("new_group", kind="composed"), 190 * MS, MS)
                journal.run(journal.store_call("set", 42), 190 * MS, MS // 2, k="cpu/0", p=outer)
            journal.begin(journal.collective(group, "barrier", shapes=None), 200 * MS, q=3)
    return findings(folder)


def test_the_next_key_of_a_series_closes_a_cycle(tmp_path: Path) -> None:
    """Rank 0 announces every step; it waits in a barrier for the one that waits for the next."""
    found = only(job(tmp_path, {0: ["step/1", "step/2"]}, {1: "step/3"}))
    assert (found.kind, found.certainty, found.culprits) == ("deadlock", "likely", ())
    assert found.key == "app/step/3"
    assert ranks(tmp_path, found.waiting) == [0, 1]
    assert found.summary.startswith(
        "Ranks 0, 1 wait for one another: rank 0 is in barrier #3 of the default group"
        " (train.py:10) and waits for rank 1"
    )
    told = "rank 1 is in store.get of 'app/step/3' (train.py:50) and waits for rank 0, which alone"
    assert told in found.summary


def test_two_keys_with_one_setter_each_make_a_cycle(tmp_path: Path) -> None:
    """Each announces its own series and waits for the other's next key."""
    sets = {0: ["left/1", "left/2"], 1: ["right/1", "right/2"]}
    found = only(job(tmp_path, sets, {0: "right/3", 1: "left/3"}))
    assert (found.kind, found.op) == ("deadlock", "store.get")
    assert ranks(tmp_path, found.waiting) == [0, 1]


@pytest.mark.parametrize(
    ("sets", "awaited", "more"),
    [
        ({0: ["ready/0"]}, "ready/2", {}),
        ({0: ["0/step/1", "0/step/2"]}, "2/step/3", {}),
        ({0: ["step/1", "step/3"], 1: ["step/2", "step/4"]}, "step/5", {}),
        ({0: ["Step/1", "Step/2"]}, "step/3", {}),
        ({0: ["step/1", "step/2", "step/4"]}, "step/3", {}),
        ({0: ["step/1", "step/2", "setp/3"]}, "step/3", {}),
        ({0: ["step/1", "step/2", "setp/3"]}, "step/3", {"mesh": True}),
        ({0: ["step/1", "step/2", "setp/3"]}, "step/3", {"tries": 20}),
        ({0: ["step/1", "step/2", "step/4"]}, "step/3", {"tries": 20}),
        ({0: ["step/1", "stop/1", "step/2", "stop/2"]}, "step/3", None),
    ],
    ids=[
        "may be a rank", "never varied", "two setters", "another spelling", "passed over",
        "misspelt", "misspelt before a mesh", "misspelt, asked again", "passed over, asked again",
        "but another series beside it hides none",
    ],
)  # fmt: skip
def test_what_makes_no_series_closes_no_cycle(
    tmp_path: Path, sets: dict[int, list[str]], awaited: str, more: dict[str, Any] | None
) -> None:
    """Who would set the next one is a guess, or has gone on without it; it waits in the barrier."""
    found = only(job(tmp_path, sets, {1: awaited}, **(more or {})))
    kind = "deadlock" if more is None else "store_key_missing"
    assert (found.kind, found.key) == (kind, f"app/{awaited}")
    if sets[0][-1] == "setp/3" and not (more or {}).get("tries"):
        told = "the nearest key that was set is 'app/setp/3', by rank 0"
        assert told in found.summary


def test_somebody_who_does_not_wait_may_still_set_it(tmp_path: Path) -> None:
    """Rank 0 set its shard of the parts; the next part may be that of rank 2, which prepares it."""
    found = job(tmp_path, {0: ["part/0", "part/1"]}, {1: "part/2"}, sleeping=[2], world_size=3)
    assert "deadlock" not in {f.kind for f in found}
    assert {f.kind: f.certainty for f in found}["store_key_missing"] == "likely"
    assert {f.kind for f in found} == {"missing_participant", "store_key_missing"}


@pytest.mark.parametrize("third", [None, "waits", "sleeps"])
def test_who_never_came_out_of_a_mismatch_sets_no_key(tmp_path: Path, third: str | None) -> None:
    """Rank 1 is in a broadcast of another size: another fault only if others set the key."""
    for journal, group in steps(tmp_path, 2 if third is None else 3):
        rank = journal.rank or 0
        shape = [7] if rank == 0 else [4]
        number = journal.begin(
            journal.collective(group, "broadcast", root=0, shapes=[shape]), 200 * MS + rank, q=3
        )
        if rank == 0:
            journal.end(number, MS)
            journal.begin(journal.store_call("wait", 60), 300 * MS, k=["go"])
        elif rank == 1:
            journal.store_call("wait", 60)  # it uses the same store
            continue
        else:
            journal.end(number, MS)
            journal.run(journal.store_call("set", 60), t=250 * MS, d=MS, k="ready")
            if third == "waits":
                journal.begin(journal.collective(group, "barrier", shapes=None), 300 * MS, q=4)
            else:
                journal.stand(3 * S, "/src/train.py", 70, "prepare")
        journal.beat(20)
    kinds = [f.kind for f in findings(tmp_path)]
    assert kinds == ["shape_mismatch", *(["store_key_missing"] if third == "sleeps" else [])]


def test_a_rank_without_a_journal_may_have_set_it(tmp_path: Path) -> None:
    """Rank 2 is not there to say what it does."""
    job(tmp_path, {0: ["step/1", "step/2"]}, {1: "step/3"}, world_size=3)
    for path in tmp_path.glob("*-4002-*"):
        path.unlink()
    assert "deadlock" not in {f.kind for f in findings(tmp_path)}


@pytest.mark.parametrize("setters", [[0], [0, 1]])
def test_a_key_that_was_deleted_makes_no_cycle(tmp_path: Path, setters: list[int]) -> None:
    """It was set once and is gone: whoever set it is not about to do so again."""
    sets = {rank: ["token"] for rank in setters}
    found = only(job(tmp_path, sets, {1: "token"}, deleted=["token"]))
    assert (found.kind, found.key) == ("store_key_missing", "app/token")
    assert ranks(tmp_path, found.waiting) == [1]
    told = "and it is gone: rank 0 set it at train.py:40, and rank 0 deleted it at train.py:41."
    assert found.summary.endswith(told)
    said = "To a rank that comes later a deleted key is one that was never set"
    assert (found.hint or "").startswith(said)


def queue(folder: Path, pushes: int, pops: int, *, dropped: bool = False) -> list[RuleFinding]:
    """Rank 0 pushes; rank 1 pops so often, and then waits for one more."""
    for journal, _ in alive(steps(folder, 2)):
        push, pop = journal.store_call("queue_push", 40), journal.store_call("queue_pop", 50)
        if journal.rank == 0:
            for n in range(pushes):
                journal.run(push, t=(150 + n) * MS, d=MS // 2, k="work")
            journal.stand(3 * S, "/src/train.py", 60, "prepare")
        else:
            for n in range(pops):
                journal.run(pop, t=(160 + n) * MS, d=MS // 2, k="work")
            journal.begin(pop, 200 * MS, k="work")
        if dropped:
            journal.define("dropped", t=190 * MS, segment=1)
    return findings(folder)


def test_a_queue_without_anything_is_a_key_that_is_missing(tmp_path: Path) -> None:
    """Unless the pop is about to return, or pushes may be among what was dropped."""
    found = only(queue(tmp_path / "drained", pushes=2, pops=2))
    assert (found.kind, found.key, found.op) == ("store_key_missing", "app/work", "store.queue_pop")
    assert "all that was pushed (2, first by rank 0) was popped (2)" in found.summary
    assert ranks(tmp_path / "drained", found.waiting) == [1]
    assert "push" in (found.hint or "")
    found = only(queue(tmp_path / "never filled", pushes=0, pops=0))
    assert (found.kind, found.key) == ("store_key_missing", "app/work")
    assert "nobody has set it" in found.summary
    assert queue(tmp_path / "full", pushes=3, pops=2) == []
    assert queue(tmp_path / "dropped", pushes=1, pops=2, dropped=True) == []


def test_who_filled_a_queue_need_not_fill_it_again(tmp_path: Path) -> None:
    """Rank 0 waits for the one that pops once too often; that is no cycle."""
    for journal, group in alive(steps(tmp_path, 2)):
        push, pop = journal.store_call("queue_push", 40), journal.store_call("queue_pop", 50)
        if journal.rank == 0:
            journal.run(push, t=150 * MS, d=MS, k="work")
            journal.begin(journal.collective(group, "barrier", shapes=None), 200 * MS, q=3)
        else:
            journal.run(pop, t=160 * MS, d=MS, k="work")
            journal.begin(pop, 200 * MS, k="work")
    found = finds(tmp_path, "store_key_missing")
    assert found.consequences == ("Rank 0 waits in barrier #3 of the default group (train.py:10).",)


def under(journal: Journal, op: str, prefix: str, key: str, t: int, **keys: Any) -> None:
    """A call in a store with a prefix of its own below the default group's; a wait is in flight."""
    store = journal.prefix_store(1, "default_pg", "0/", prefix)
    where = journal.stack(("train.py", 50 if op == "wait" else 40, "main"))
    usual = {"kind": "store", "store": store, "origin": "python", "stack": where}
    call = journal.call(f"store.{op}", **{**usual, **keys})
    if op == "wait":
        journal.begin(call, t, k=[key])
    else:
        journal.run(call, t=t, d=MS // 2, k=key)


@pytest.mark.parametrize("world_size", [2, 3])
def test_all_who_could_set_it_wait_for_who_waits_for_it(tmp_path: Path, world_size: int) -> None:
    """Rank 1 would set it later; rank 2 waits for 1, and so for 0. A mesh's keys are like none."""
    for journal, group in alive(steps(tmp_path, world_size)):
        under(journal, "set", "cpu/", f"0/{journal.rank}", 150 * MS, origin="c++", stack=None)
        if journal.rank == 0:
            under(journal, "wait", "data", "unpacked", 200 * MS)
        elif world_size == 2:
            journal.begin(journal.collective(group, "barrier", shapes=None), 200 * MS, q=3)
        else:
            journal.begin(journal.message(group, "recv", (journal.rank or 0) - 1), 200 * MS, q=1)
    found = finds(tmp_path, "store_key_missing", [], certainty="likely", waiting=[0])
    told = "rank 1 in barrier #3 of the default group (train.py:10)"
    if world_size == 3:
        told = "rank 1 in recv from rank 0 (train.py:20) and rank 2 in recv from rank 1 (train.py:"
        told += "20)"
    assert found.summary.endswith(
        f"and nobody has set it; all others who use this store wait for rank 0 themselves: {told}."
    )
    said = "Set the key before the call in which its setter waits, or wait for it after that."
    assert (found.hint or "").endswith(said)


@pytest.mark.parametrize("who", ["asleep", "unseen", "elsewhere"])
def test_who_may_still_come_to_set_it_closes_no_cycle(tmp_path: Path, who: str) -> None:
    """One is at work; one has no journal; one waits for somebody who waits for nobody."""
    for journal, group in steps(tmp_path, 3):
        if journal.rank == 0:
            under(journal, "wait", "data", "unpacked", 200 * MS)
        elif journal.rank == 1 and who != "elsewhere":
            journal.begin(journal.collective(group, "barrier", shapes=None), 200 * MS, q=3)
        elif journal.rank == 1:
            journal.begin(journal.message(group, "recv", 2), 200 * MS, q=1)
        else:
            under(journal, "set", "data", "mine", 150 * MS)
            journal.stand(3 * S, "/src/train.py", 60, "prepare")
        journal.beat(20)
        if journal.rank == 2 and who == "unseen":
            journal.remove()
    found = [f for f in findings(tmp_path) if f.kind == "store_key_missing"]
    assert all("themselves" not in f.summary + (f.hint or "") for f in found)


@pytest.mark.parametrize(
    ("prefix", "key", "near"),
    [
        ("date", "unpacked", True),
        ("data", "unpackd", True),
        ("cache", "shards", False),
        ("data", "loss", False),
    ],
)
def test_likeness_of_what_was_written(tmp_path: Path, prefix: str, key: str, *, near: bool) -> None:
    """Stores below the default group's begin alike, whatever the keys in them."""
    for journal, group in alive(steps(tmp_path, 2)):
        if journal.rank == 0:
            under(journal, "wait", "data", "unpacked", 200 * MS)
        else:
            under(journal, "set", prefix, key, 150 * MS)
            journal.begin(journal.collective(group, "barrier", shapes=None), 200 * MS, q=3)
    found = finds(tmp_path, "store_key_missing")
    assert (f"nearest key that was set is 'default_pg/0//{prefix}/{key}'" in found.summary) is near
    assert ("spelling" in (found.hint or "")) is near


def turns(counts: Mapping[int, int]) -> dict[int, list[str]]:
    """What C++ sets for symmetric memory, rank by rank in so many turns."""
    return {
        rank: [f"CUDASymmetricMemory/{turn}/{rank}" for turn in range(count)]
        for rank, count in counts.items()
    }


@pytest.mark.parametrize(
    ("counts", "awaited", "odd"),
    [
        ({0: 3, 1: 3, 2: 2}, {0: "2/2", 1: "2/2"}, [2]),
        ({0: 3, 1: 4, 2: 3}, {1: "3/0"}, [1]),
        ({0: 3, 1: 2}, {0: "2/1"}, []),
        ({0: 3, 1: 2, 2: 2}, {0: "2/2", 1: "2/2"}, [2]),
        ({0: 1, 1: 1, 2: 1}, {0: "1/2", 1: "1/2"}, []),
    ],
    ids=[
        "behind",
        "ahead",
        "of two",
        "a key of one that waits is not known",
        "no turn that goes on",
    ],
)
def test_of_keys_that_ranks_set_in_turns_the_one_at_another_turn_is_named(
    tmp_path: Path, counts: dict[int, int], awaited: dict[int, str], odd: list[int]
) -> None:
    awaits = {rank: f"CUDASymmetricMemory/{key}" for rank, key in awaited.items()}
    keys: dict[str, Any] = {"sleeping": [2] * (odd == [2]), "world_size": len(counts)}
    found = only(job(tmp_path, turns(counts), awaits, **keys))
    assert found.kind == "store_key_missing"
    assert ranks(tmp_path, found.culprits) == odd
    assert ("came to turn" in found.summary) == bool(odd)
    if odd == [2]:
        told = "rank 2 came to turn 1, ranks 0, 1 to 2; it is at train.py:60 in prepare"
        assert (told) in found.summary


@pytest.mark.parametrize(
    ("came", "odd"), [({0, 1, 3}, [2]), ({0}, [0]), ({0, 1}, [])], ids=["skipped", "extra", "half"]
)
def test_who_is_behind_in_turns_and_waits_for_one_that_is_ahead_is_not_named(
    tmp_path: Path, came: set[int], odd: list[int]
) -> None:
    """Rank 0 is the root of a scatter: others leave it as soon as they have their part."""
    for journal, group in alive(steps(tmp_path, 4)):
        rank = journal.rank or 0
        take_turns(journal, 4 if rank else 3)
        scatter = journal.collective(group, "scatter", root=0)
        if rank == 0:
            journal.begin(scatter, 190 * MS, q=3)
        elif rank in came:
            journal.run(scatter, 190 * MS, 2 * MS, q=3)
        if rank:
            journal.begin(journal.store_call("get", 50), 200 * MS, k="CUDASymmetricMemory/3/0")
    found = finds(tmp_path, "store_key_missing", odd)
    went = "rank 2 came to turn 3 without scatter #3 of the default group (train.py:10)"
    assert (went in found.summary) == (odd == [2])


def take_turns(journal: Journal, count: int) -> None:
    """Its keys of symmetric memory, from 150 ms on."""
    for n in range(count):
        t, key = (150 + n) * MS + (journal.rank or 0), f"CUDASymmetricMemory/{n}/{journal.rank}"
        journal.run(journal.store_call("set", 40), t=t, d=MS // 2, k=key)


def test_who_is_ahead_in_turns_is_not_named_while_others_are_at_work(tmp_path: Path) -> None:
    """Rank 0 is no member of the group in which rank 2 waits; rank 1 has not come to it."""
    for journal, group in alive(steps(tmp_path, 3)):
        take_turns(journal, 2 if journal.rank else 3)
        if journal.rank == 0:
            journal.begin(journal.store_call("get", 50), 200 * MS, k="CUDASymmetricMemory/2/1")
        else:
            act(journal, group, "at train.py:60 prepare" if journal.rank == 1 else "recv 1")
    found = [f for f in findings(tmp_path) if f.culprits]
    assert found
    assert all(ranks(tmp_path, one.culprits) == [1] for one in found)


def test_who_is_behind_in_turns_and_asks_for_a_lock_is_not_named(tmp_path: Path) -> None:
    """Rank 1 has the lock and goes on to the next turn; rank 0 cannot before it is given back."""
    for journal, _ in alive(steps(tmp_path, 2)):
        take_turns(journal, 2 + (journal.rank or 0))
        if journal.rank == 0:
            take = journal.store_call("compare_set", 61)
            for n in range(1, 100):
                journal.run(take, n * S // 5, MS, k="lock")
        else:
            journal.begin(journal.store_call("get", 50), 190 * MS, k="CUDASymmetricMemory/2/0")
    told = "rank 0 asks again and again (store.compare_set"
    finds(tmp_path, "store_key_missing", [], says=told)
