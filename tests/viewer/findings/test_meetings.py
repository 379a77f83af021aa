"""Faults of rendezvous and of the creation of groups."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from support.journals import MS, T0, Journal, S, workers
from support.scenes import alive, all_gone, findings, finds, only, ranks, steps, stuck


def met(journal: Journal, t: int, world_size: int, port: int = 29500) -> None:
    """The client's part of a rendezvous up to the mesh, in which it then waits."""
    init, meet, store = journal.join(t, world_size, port)
    for number in (store, meet):
        journal.end(number, MS)
    journal.mesh(t + 2 * MS, init, world_size, journal.rank or 0, "default_pg", "0/", "cpu/")


def test_a_rank_that_was_never_started_is_named(tmp_path: Path) -> None:
    """Rank 0 waits in its store, rank 1 in the mesh, and no process of rank 2 was seen."""
    for journal in alive(workers(tmp_path, 3)[:2]):
        if journal.rank == 0:
            journal.join(100 * MS, 3)
        else:
            met(journal, 100 * MS, 3)
    for path in tmp_path.glob("*-4002-*"):
        path.unlink()
    found = finds(
        tmp_path, "rendezvous_incomplete", [], certainty="likely", absent_ranks=(2,),
        waiting=[0, 1], stall_s=3,
    )  # fmt: skip
    assert "2 of 3 have arrived (ranks 0, 1); no journal of rank 2 was found" in found.summary


def test_a_store_for_more_clients_than_there_are_ranks(tmp_path: Path) -> None:
    """All three have come to a store that was made for four."""
    for journal in alive(workers(tmp_path, 3)):
        if journal.rank == 0:
            journal.join(100 * MS, 4)
        else:
            for number in journal.join(100 * MS, 4)[::-1]:
                journal.end(number, MS)
    found = finds(
        tmp_path, "rendezvous_incomplete", [], certainty="likely", absent_ranks=(), look=all_gone
    )
    assert "3 of 4 have arrived (ranks 0-2); no journal of rank 3 was found." in found.summary


def test_what_cpp_code_awaits_in_the_store_is_part_of_the_mesh(tmp_path: Path) -> None:
    """Gloo waits for the key of the peer that is missing; that is no fault of a key."""
    for journal in alive(workers(tmp_path, 2)):
        if journal.rank == 1:
            met(journal, 100 * MS, 2)
            keys = {"kind": "store", "store": 3, "origin": "c++"}
            journal.begin(journal.call("store.wait", **keys), 200 * MS, p=1, k=["0/0"])
        else:
            init, meet, store = journal.join(50 * MS, 2)
            for number in (store, meet):
                journal.end(number, MS)
            journal.end(init, 2 * MS, x=journal.string("KeyboardInterrupt"))
            journal.stand(3 * S, "/src/train.py", 3, "clean_up")
    finds(tmp_path, "rendezvous_incomplete", [0], op="init_process_group")


@pytest.mark.parametrize(("until_s", "told"), [(16, False), (40, True)])
def test_who_dialled_in_vain_tries_seldom(tmp_path: Path, until_s: int, told: bool) -> None:
    """The server came ten seconds late: torch's client waits for longer before each try."""
    for journal in alive(workers(tmp_path, 2), until_s):
        journal.join(10 * S if journal.rank == 0 else 50 * MS, 2)
    serious = [f.kind for f in findings(tmp_path, stall_s=3) if f.severity != "note"]
    assert serious == ["no_progress"] * told


@pytest.mark.parametrize("frozen", [False, True])
def test_all_have_come_and_nobody_gets_through(tmp_path: Path, *, frozen: bool) -> None:
    """Connections cannot be made; or rank 0 was stopped, and others ask its store for addresses."""
    for journal in workers(tmp_path, 3):
        met(journal, 100 * MS, 3)
        if journal.rank or not frozen:
            keys = {"kind": "store", "store": 3, "origin": "c++"}
            if frozen:
                wait = journal.call("store.get", stack=0, **keys)
                journal.begin(wait, 110 * MS, k="default_pg/0//cpu//0/0")
            journal.beat(20)
    found = finds(tmp_path, "no_progress", [0] if frozen else [], certainty="likely")
    if frozen:
        assert "rank 0, which serves this store, does not answer" in found.summary
    else:
        assert found.summary.startswith("All members have joined ")
        assert "GLOO_SOCKET_IFNAME" in str(found.hint)


def test_waiting_in_what_cannot_be_seen_is_no_progress(tmp_path: Path) -> None:
    """Nothing tells what an ``init_process_group`` without anything inside waits for."""
    for journal in alive(workers(tmp_path, 2)):
        init, meet, store = journal.join(50 * MS, 2)
        for number in (store, meet):
            journal.end(number, MS)
        assert init == 1
    told = {(f.kind, f.op, f.culprits) for f in findings(tmp_path)}
    assert told == {("no_progress", "init_process_group", ())}


def test_a_time_out_in_the_store_has_come_all_the_same(tmp_path: Path) -> None:
    """Rank 0 gave up waiting; rank 1 never came."""
    (journal,) = workers(tmp_path, 2)[:1]
    init, meet, store = journal.join(100 * MS, 2)
    text = journal.string("torch.distributed.DistStoreError: Timed out after 9 seconds waiting")
    journal.end(store, 9 * S, x=text, f=1)
    journal.end(meet, 9 * S, x=text)
    journal.end(init, 9 * S, x=text)
    journal.fail(10 * S, "DistStoreError", "Timed out after 9 seconds waiting for clients")
    for path in tmp_path.glob("*-4001-*"):
        path.unlink()
    finds(tmp_path, "rendezvous_incomplete", absent_ranks=(1,), look=all_gone)


def test_a_rank_that_stands_before_its_rendezvous_is_named_with_its_line(tmp_path: Path) -> None:
    """It was started and has not come yet."""
    for journal in alive(workers(tmp_path, 2)):
        if journal.rank == 0:
            journal.join(100 * MS, 2)
        else:
            journal.stand(3 * S, "/src/train.py", 3, "download")
    found = finds(tmp_path, "rendezvous_incomplete", [1], stall_s=3)
    assert "rank 1 never joined; it is at train.py:3 in download, not in any" in found.summary


def test_who_asks_for_a_lock_before_its_rendezvous_is_not_blamed(tmp_path: Path) -> None:
    """Whoever has the lock answers for it, and no record says who."""
    for journal in alive(workers(tmp_path, 2)):
        if journal.rank == 0:
            journal.join(100 * MS, 2)
        else:
            lock = journal.store_call("compare_set", 3)
            for n in range(10, 20 * 50):
                journal.run(lock, n * 20 * MS, MS, k="lock")
    found = finds(tmp_path, "rendezvous_incomplete", [], certainty="likely", stall_s=3)
    assert "rank 1 never joined; it asks again and again (store.compare_set of" in found.summary


@pytest.mark.parametrize("has_journal", [True, False])
def test_a_start_that_takes_long_is_a_note(tmp_path: Path, *, has_journal: bool) -> None:
    """Rank 2 still imports: nobody has a group yet, and nobody is to blame."""
    for journal in alive(workers(tmp_path, 3)):
        if journal.rank == 2:
            journal.stand(3 * S, "/src/train.py", 1, "<module>")
        else:
            journal.join(100 * MS, 3)
    for path in [] if has_journal else list(tmp_path.glob("*-4002-*")):
        path.unlink()
    found = only(findings(tmp_path))
    assert (found.severity, found.culprits, found.absent_ranks) == ("note", (), ())
    assert found.summary.startswith("2 of 3 ranks have come to init_process_group (train.py:5)")
    assert found.deadline is not None
    (late,) = [f for f in findings(tmp_path, look=all_gone) if f.severity == "error"]
    assert late.kind == "rendezvous_incomplete"


def test_who_has_just_begun_to_join_is_still_on_its_way(tmp_path: Path) -> None:
    """Rank 0 imported for long, and is about to listen."""
    for journal in alive(workers(tmp_path, 2)):
        if journal.rank:
            journal.join(100 * MS, 2)
        else:
            init = journal.call("init_process_group", kind="composed", origin="python")
            journal.begin(init, 20 * S - MS)
    finds(tmp_path, "rendezvous_unreachable", [], severity="note")


@pytest.mark.parametrize("has_journal", [True, False])
def test_nobody_listens_where_rank_0_has_not_come(tmp_path: Path, *, has_journal: bool) -> None:
    """Both clients dial in vain; as long as rank 0 may still import, that is a start."""
    journals = workers(tmp_path, 3)
    for journal in journals[1:]:
        journal.join(100 * MS, 3)
    journals[0].stand(3 * S, "/src/train.py", 1, "<module>")
    for journal in journals:
        journal.beat(20)
    for path in [] if has_journal else list(tmp_path.glob("*-4000-*")):
        path.unlink()
    keys = {"severity": "note", "absent_ranks": (), "certainty": "likely"}
    finds(tmp_path, "rendezvous_unreachable", [], **keys)
    found = only(findings(tmp_path, stall_s=3))
    named = ranks(tmp_path, found.culprits) or [*found.absent_ranks]
    assert (found.kind, found.severity, named) == ("rendezvous_unreachable", "error", [0])
    assert ranks(tmp_path, found.waiting) == [1, 2]


@pytest.mark.parametrize("odd", ["another port", "another world size"])
def test_who_joins_otherwise_than_the_others_is_named(tmp_path: Path, odd: str) -> None:
    """Rank 1 dials another port, from which it follows that the others wait; or says four."""
    for journal in alive(workers(tmp_path, 3)):
        if journal.rank == 0:
            journal.join(100 * MS, 3)
        elif journal.rank == 1 and odd == "another port":
            journal.join(100 * MS, 3, port=29501)
        else:
            met(journal, 100 * MS, 4 if journal.rank == 1 else 3)
    if odd == "another port":
        told = "rank 0 listens at 127.0.0.1:29500, where the others dial"
        found = finds(tmp_path, "rendezvous_unreachable", [1], says=told)
        assert len(found.consequences) == 2
    else:
        finds(tmp_path, "group_mismatch", [1], says="rank 1 claims 4 and ranks 0, 2 claim 3")


def again(journals: list[Journal], ports: list[int], *, listens: bool) -> None:
    """All met at an agent's store; then they make the group anew, each at a port of its own."""
    for journal, port in zip(journals, ports, strict=True):
        where = journal.stack(("train.py", 9, "main"))
        for at, begin, end in ((29500, 100 * MS, 10 * MS), (port, 5 * S, None)):
            serves = listens and end is None and journal.rank == 0
            make = journal.call(
                "TCPStore", kind="constructor", store=journal.tcp_store(at, server=serves),
                origin="python", stack=where,
                args={"host": "127.0.0.1", "port": at, "world_size": len(journals)},
            )  # fmt: skip
            number = journal.begin(make, begin)
            if end is not None or (listens and at == ports[0]):
                journal.end(number, end or 10 * MS)
        journal.beat(30)


def agent_that_listens(folder: Path) -> None:
    """It was there first, served the first store, and does still."""
    agent = Journal(folder, pid=3999, role="agent", t0=T0 - 5 * S)
    make = agent.call(
        "TCPStore", kind="constructor", store=agent.tcp_store(29500, server=True), origin="python",
        args={"host": "127.0.0.1", "port": 29500, "world_size": 1},
    )  # fmt: skip
    agent.run(make, 10 * MS, 10 * MS)
    agent.beat(35)


@pytest.mark.parametrize(("ports", "listens", "culprits", "told"), [
    ([29502, 29502, 29501], True, [2], "rank 0 listens at 127.0.0.1:29502, where the others dial"),
    ([29502] * 3, False, [], "listens: rank 0, which should listen, dials it itself."),
])  # fmt: skip
def test_a_second_rendezvous(
    tmp_path: Path, ports: list[int], listens: bool, culprits: list[int], told: str
) -> None:
    """Where the first one was nobody dials any more; the agent serves that one only."""
    agent_that_listens(tmp_path)
    again(workers(tmp_path, 3), ports, listens=listens)
    found = finds(tmp_path, "rendezvous_unreachable", culprits, says=told)
    assert listens or found.certainty == "likely"


def test_who_listened_before_and_has_ended_answers_nobody(tmp_path: Path) -> None:
    """Rank 0 met rank 1 and ended; rank 1 joins anew at the same address, in vain."""
    for journal in workers(tmp_path, 2):
        init, meet, store = journal.join(100 * MS, 2)
        for number in (store, meet, init):
            journal.end(number, S)
        if journal.rank == 0:
            journal.leave(5 * S)
        else:
            journal.join(6 * S, 2)
            journal.beat(30)
    found = finds(tmp_path, "rendezvous_unreachable", [])
    assert found.summary.endswith("rank 0 listened there before and has ended.")


def test_two_claims_on_one_rank_explain_the_one_that_is_missing(tmp_path: Path) -> None:
    """Both processes are culprits; nobody claims rank 2."""
    journals = [Journal(tmp_path, pid=4000 + n, rank=r, world_size=3) for n, r in enumerate((0, 1))]
    journals[0].join(100 * MS, 3)
    met(journals[1], 100 * MS, 3)
    again = Journal(tmp_path, pid=4002, rank=1, world_size=3)
    met(again, 200 * MS, 3)
    for journal in (*journals, again):
        journal.beat(20)
    found = finds(tmp_path, "duplicate_rank", [1, 1])
    assert "pid 4001 on host and pid 4002 on host; nobody claims rank 2" in found.summary


def test_nobody_claims_anything_at_port_0(tmp_path: Path) -> None:
    """Any free port: each wants one of its own (children, each with a group of one), not this."""
    for number in range(3):
        journal = Journal(tmp_path, pid=4000 + number, rank=0, world_size=1)
        journal.join(100 * MS, 1, port=0)
        journal.beat(20)
    assert "duplicate_rank" not in {f.kind for f in findings(tmp_path)}


def test_a_restart_claims_the_same_rank_later(tmp_path: Path) -> None:
    """The first attempt had ended before: no duplicate."""
    first = Journal(tmp_path, pid=4000, rank=0, world_size=1)
    first.join(100 * MS, 1)
    first.leave(200 * MS)
    second = Journal(tmp_path, pid=4001, rank=0, world_size=1, t0=T0 + 30 * S)
    _, _, store = second.join(100 * MS, 1)
    second.end(store, MS)
    second.leave(300 * MS)
    assert findings(tmp_path, look=all_gone) == []


def test_who_could_not_listen_is_not_absent(tmp_path: Path) -> None:
    """Another program has the port: rank 0 came, failed and ended, and the others dial on."""
    first, *others = workers(tmp_path, 3)
    init, meet, store = first.join(2 * S, 3)
    error = "The server socket has failed to listen on any local network address. EADDRINUSE"
    raised = first.string(f"DistNetworkError: {error}")
    for operation in (store, meet, init):
        first.end(operation, MS, x=raised, f=1)
    first.fail(2 * S + 2 * MS, "DistNetworkError", error)
    for journal in alive(others, 30):
        journal.join(3 * S, 3)
    finds(tmp_path, "process_failed", [0])


def test_prefixes_that_differ_are_shown_side_by_side(tmp_path: Path) -> None:
    """Two processes build a group of two by hand, each under a prefix of its own."""
    for journal in alive(workers(tmp_path, 2)):
        rank = journal.rank or 0
        journal.mesh(100 * MS, 0, 2, rank, f"job_{rank}")
    finds(tmp_path, "rendezvous_incomplete", [], says=("job_0", "job_1"))


CREATIONS: dict[str, tuple[list[str], str, list[int], dict[str, Any]]] = {
    "rank 1 of three names other members": (
        ["create 0 1", "create 1 2", "create 0 1"], "group_mismatch", [1],
        {"severity": "error", "says": "rank 1 makes [1, 2] (train.py:62)"},
    ),
    "one against one, either may have left a call out": (
        ["all_reduce", "create 0 1"], "group_mismatch", [],
        {"certainty": "likely",
         "hints": "a call before it that those who make the group have left out"},
    ),
    "rank 0 makes one more, under a condition on its rank": (
        ["create 0 1 2", "all_reduce", "all_reduce"], "group_mismatch", [0],
        {"says": "ranks 1, 2 went past it and are in all_reduce #3 of the default group"
         " (train.py:10)."},
    ),
    "who is held up by each other has not gone past it: tags differ": (
        ["send 2 1", "create 0 1 2", "recv 0"], "unmatched_send", [], {"waiting": [0, 2]},
    ),
    "rank 3 may have left the send out as well as rank 0 the group": (
        ["recv 3", *["create 0 1 2 3"] * 3], "deadlock", [], {},
    ),
    "rank 1 may still come": (
        ["create 0 1", "at train.py:99 save"], "missing_participant", [1], {},
    ),
}  # fmt: skip


@pytest.mark.parametrize(("acts", "kind", "culprits", "facts"), CREATIONS.values(), ids=CREATIONS)
def test_who_went_past_a_creation(
    tmp_path: Path, acts: list[str], kind: str, culprits: list[int], facts: dict[str, Any]
) -> None:
    stuck(tmp_path, *acts)
    finds(tmp_path, kind, culprits, **facts)


def test_groups_that_were_made_alike_do_not_differ(tmp_path: Path) -> None:
    """A ring of groups: each rank is in two of three, in its own order, and is stuck in one."""
    for journal, _ in alive(steps(tmp_path, 3)):
        rank = journal.rank or 0
        for place, members in enumerate(([0, 1], [1, 2], [0, 2])):
            journal.create((200 + 10 * place) * MS, members, wait=False)
        group = journal.group(ranks=[rank, (rank + 1) % 3], size=2, default=False, name="ring")
        journal.begin(journal.collective(group), 300 * MS, q=1)
    assert "group_mismatch" not in {found.kind for found in findings(tmp_path)}


def test_a_group_mismatch_that_harmed_nobody_is_a_warning(tmp_path: Path) -> None:
    """Two halves made groups of their own in the same call, and all went well."""
    for journal, _ in steps(tmp_path, 4):
        half = [0, 1] if (journal.rank or 0) < 2 else [2, 3]
        journal.create(200 * MS, half, wait=False)
        journal.leave(300 * MS)
    finds(tmp_path, "group_mismatch", [], severity="warning", look=all_gone)


def test_members_only_with_nothing_after_it_is_legal(tmp_path: Path) -> None:
    """Ranks 2, 3 do not call, and nobody misses them."""
    for journal, _ in steps(tmp_path, 4):
        if (journal.rank or 0) < 2:
            journal.create(200 * MS, [0, 1], wait=False)
        journal.leave(300 * MS)
    assert findings(tmp_path, look=all_gone) == []


def test_who_goes_past_a_creation_is_to_blame(tmp_path: Path) -> None:
    """Rank 1 does not call and waits in the next collective instead."""
    for journal, group in alive(steps(tmp_path, 3)):
        if journal.rank == 1:
            journal.begin(journal.collective(group), 200 * MS, q=3)
        else:
            journal.create(200 * MS, [0, 1])
        if journal.rank == 2:
            journal.begin(journal.collective(group), 300 * MS, q=3)
    finds(tmp_path, "group_mismatch", [1], says="rank 1 went past it and is in all_reduce #3")


def test_who_waits_in_what_others_made_before_a_creation_has_not_gone_past(tmp_path: Path) -> None:
    """Rank 3 left out a scatter, whose root waits, and makes the next group with the others."""
    everybody = [0, 1, 2, 3]
    for journal, group in alive(steps(tmp_path, 4)):
        call = journal.collective(group, "scatter", args={"root": 0})
        if journal.rank == 0:
            journal.begin(call, 200 * MS, q=3)
        elif journal.rank != 3:
            journal.run(call, 200 * MS, MS, q=3)
        if journal.rank != 0:
            journal.create(220 * MS, everybody)
    finds(tmp_path, "deadlock", [], says=("rank 0 is in scatter #3", "waits for rank 3"))


def test_who_is_held_up_by_one_that_went_past_may_still_come(tmp_path: Path) -> None:
    """Rank 2 gave a collective another group than rank 1, which is not out of step."""
    for journal, group in alive(steps(tmp_path, 3)):
        if journal.rank == 0:
            journal.create(220 * MS, [0, 1, 2])
        elif journal.rank == 1:
            pair = journal.group(name="1", ranks=[1, 2], rank=0, size=2, default=False)
            journal.begin(journal.collective(pair), 200 * MS, q=1)
        else:
            journal.group(name="1", ranks=[1, 2], rank=1, size=2, default=False)
            journal.begin(journal.collective(group), 200 * MS, q=3)
    finds(tmp_path, "group_mismatch", [], certainty="likely", says="rank 2 went past it")


def test_who_waits_in_a_creation_before_it_has_not_gone_past(tmp_path: Path) -> None:
    """Ranks 0 and 1 make a group alone and do not meet: torch named it by the groups they had."""
    for journal, _ in alive(steps(tmp_path, 3)):
        rank = journal.rank or 0
        if rank == 2:
            journal.create(200 * MS, [0, 1, 2])
        else:
            args = {"ranks": [0, 1], "use_local_synchronization": True, "sort_ranks": True}
            call = journal.call("new_group", kind="composed", origin="python", args=args)
            outer = journal.begin(call, 200 * MS)
            journal.mesh(200 * MS + 1, outer, 2, rank, "0/", f"hash{rank}/", "cpu/")
    assert {(f.kind, f.culprits) for f in findings(tmp_path)} == {("group_mismatch", ())}


@pytest.mark.parametrize("since_ms", [200, 15_000])
def test_one_group_under_two_names_is_no_deadlock(tmp_path: Path, since_ms: int) -> None:
    """By ``use_local_synchronization`` rank 1 made one before, without rank 0."""
    for journal, _ in alive(steps(tmp_path, 3)):
        rank = journal.rank or 0
        if rank < 2:
            where = journal.stack(("train.py", 30 + rank, "main"))
            args = {"ranks": [0, 1], "use_local_synchronization": True}
            keys = {"kind": "composed", "origin": "python", "stack": where, "args": args}
            make = journal.call("new_group", **keys)
            begin = (since_ms if rank else 200) * MS
            outer = journal.begin(make, begin)
            store = journal.prefix_store(1, f"abc{rank}", "cpu")
            args = {"rank": rank, "size": 2}
            mesh = {"kind": "constructor", "store": store, "stack": where, "args": args}
            journal.begin(journal.call("ProcessGroupGloo", **mesh), begin + MS, p=outer)
    found = finds(tmp_path, "group_mismatch", [], cycle=None, waiting=[0, 1])
    assert "rank 0 makes it under 'abc0/cpu' (train.py:30)" in found.summary


@pytest.mark.parametrize(
    ("becomes", "through", "pace"),
    [(False, True, S), (True, True, S), (True, False, S), (True, False, 20 * MS)],
    ids=["a child", "execv", "execv, on its way", "execv at once"],
)
def test_who_joins_under_a_rank_that_is_taken_meets_nobody(
    tmp_path: Path, *, becomes: bool, through: bool, pace: int
) -> None:
    """It came through the rendezvous, and its first call is one that the others left long ago."""
    late = 100 * MS + 9 * pace
    journals = [Journal(tmp_path, pid=4000 + n, rank=n, world_size=3) for n in range(3)]
    second = Journal(
        tmp_path, pid=4001 if becomes else 4100, rank=1, world_size=3, t0=T0 + late,
        process="second", parent=journals[1].process,
    )  # fmt: skip
    for journal in (*journals, second):
        at = 0 if journal is second else 100 * MS
        if journal is second and not through:
            met(journal, at, 3)
            journal.beat(20)
            continue
        init, meet, store = journal.join(at, 3)
        rank = journal.rank or 0
        made = journal.mesh(at + 2 * MS, init, 3, rank, "default_pg", "0/", "cpu/")
        for number in (store, meet, made, init):
            journal.end(number, 20 * MS)
        call = journal.collective(journal.world())
        for n in range(1, 1 if journal is second else 4):
            journal.run(call, 100 * MS + n * pace, 5 * MS, q=n)
        if journal is second:
            journal.begin(call, 100 * MS, q=1)
        elif journal is not journals[1]:
            journal.begin(call, 100 * MS + 5 * pace, q=4)
        elif becomes:
            journal.define("exit", t=100 * MS + 6 * pace, how="exec", code=None)
            journal.define("activity", t=15 * S, over=5 * S, cpu=0, read=0, written=0)
        else:
            journal.stand(6 * S, "train.py", 60, "evaluate")
        gone = becomes and journal is journals[1]
        journal.beat(20 if journal is second else 6 * pace // S if gone else 30)
    found = only(findings(tmp_path))
    if becomes:
        assert (found.kind, ranks(tmp_path, found.culprits)) == ("missing_participant", [1])
        assert found.summary.endswith("became another program (exec)."), "no word on what came"
    else:
        assert (found.kind, ranks(tmp_path, found.culprits)) == ("duplicate_rank", [1, 1])
        assert found.summary.endswith(
            "pid 4001 on host and pid 4100 on host; pid 4100 was started by pid 4001, which stands"
            " at train.py:60 in evaluate."
        )


def make(journal: Journal, *, prefix: str, rank: int, size: int, over: bool = False) -> None:
    """Construct a group over a store that all have; ``over``: it came about."""
    base = journal.tcp_store(29600, server=journal.rank == 0)
    call = journal.call(
        "ProcessGroupGloo", kind="constructor", store=journal.prefix_store(base, prefix),
        origin="python", stack=("hand.py", 6, "main"),
        args={"rank": rank, "size": size},
    )  # fmt: skip
    if over:
        journal.run(call, t=200 * MS, d=10 * MS)
    else:
        journal.begin(call, 200 * MS)


@pytest.mark.parametrize(
    ("came", "pairs", "missing"),
    [((0, 2), False, [1]), ((1, 2), False, [0]), ((2,), True, [3])],
    ids=["a client of nothing", "the server", "a pair with ranks of its own"],
)
def test_who_is_missing_is_a_process_and_no_lost_journal(
    tmp_path: Path, came: Sequence[int], pairs: bool, missing: list[int]
) -> None:
    """By rank where the ranks are the job's, else who has made fewer groups over the store."""
    for journal in alive(workers(tmp_path, 4 if pairs else 3), 70):
        rank = journal.rank or 0
        if pairs:
            journal.tcp_store(29600, server=rank == 0)
            if rank not in missing:
                prefix, over = f"pair{rank // 2}", rank not in came
                make(journal, prefix=prefix, rank=rank % 2, size=2, over=over)
        elif rank in came:
            make(journal, prefix="x", rank=rank, size=3)
    finds(tmp_path, "rendezvous_incomplete", missing, absent_ranks=())


@pytest.mark.parametrize("silent", [False, True])
def test_who_fell_silent_before_it_joined_may_have_ended(tmp_path: Path, *, silent: bool) -> None:
    """Nobody saw whether rank 1 still lived."""
    for journal in workers(tmp_path, 2):
        journal.tcp_store(29600, server=journal.rank == 0)
        if journal.rank == 0:
            make(journal, prefix="x", rank=0, size=2)
        journal.beat(20 if silent and journal.rank else 70)
    certainty = "likely" if silent else "certain"
    found = finds(tmp_path, "rendezvous_incomplete", [1], certainty=certainty)
    assert ["still lived" in told for told in found.settles] == [True] * silent


def test_nobody_is_named_where_it_may_be_any_of_several(tmp_path: Path) -> None:
    """Two of three others may be the second of a pair."""
    for journal in alive(workers(tmp_path, 4), 70):
        journal.tcp_store(29600, server=journal.rank == 0)
        if journal.rank == 2:
            make(journal, prefix="pair", rank=0, size=2)
    told = "who is missing is not known"
    finds(tmp_path, "rendezvous_incomplete", [], absent_ranks=(), says=told)


def test_who_turned_into_another_program_took_the_store_with_it(tmp_path: Path) -> None:
    """Rank 0 served it; rank 1 lost contact with it in a wait for a key."""
    for journal in workers(tmp_path, 2):
        journal.world()
        if journal.rank == 0:
            journal.define("exit", t=300 * MS, how="exec")
            continue
        wait, text = journal.store_call("wait", 13), f"DistNetworkError: {LOST}"
        journal.break_off(wait, 200 * MS, 200 * MS, 401 * MS, text, refused=True)
    found = finds(tmp_path, "process_failed", [0], look=all_gone)
    assert "rank 0, which became another program (exec)" in found.summary


LOST = "Failed to recv, got 0 bytes. Connection was likely closed. Did the remote server shutdown?"


@pytest.mark.parametrize("over", [False, True])
def test_two_processes_come_under_one_rank(tmp_path: Path, *, over: bool) -> None:
    """The arguments of the constructor say so, whatever the processes' own ranks are."""
    for journal in alive(workers(tmp_path, 3), 70):
        rank = min(journal.rank or 0, 1)
        make(journal, prefix="x", rank=rank, size=3, over=over and rank == 1)
    found = finds(tmp_path, "duplicate_rank", [1, 2], says="2 processes claim rank 1")
    assert found.summary.endswith("nobody claims rank 2.")
