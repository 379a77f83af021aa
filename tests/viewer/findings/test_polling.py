"""Waits that no operation in flight shows: a store is asked for a key again and again, the main
thread waits beside another one that communicates, the process that serves the store is still.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from disttrace_viewer.analysis.liveness import UNKNOWN, Look, Observation
from disttrace_viewer.trace.process import Process
from support.journals import MS, Journal, S
from support.scenes import alive, findings, finds, hang_without, only, ranks, steps

UNTIL_S = 20


def asks(journal: Journal, key: str) -> None:
    """Every half second until the end."""
    call = journal.store_call("add", 61)
    for n in range(1, 2 * UNTIL_S):
        journal.run(call, n * S // 2, MS, k=key)


def job(
    folder: Path, third: Callable[[Journal, int], None], world_size: int = 3, *, series: bool = True
) -> None:
    """Two have counted themselves in for step 3 and ask until all have; the third is a callable."""
    for journal, group in alive(steps(folder, world_size), UNTIL_S):
        for step in (1, 2) if series else ():  # it counts itself in, and finds all there at once
            t, key = (120 + 10 * step) * MS, f"arrived/{step}"
            journal.run(journal.store_call("add", 60), t, MS, k=key)
            journal.run(journal.store_call("add", 61), t + 2 * MS, MS, k=key)
        if journal.rank == world_size - 1:
            third(journal, group)
        else:
            journal.run(journal.store_call("add", 60), 200 * MS, MS, k="arrived/3")
            asks(journal, "arrived/3")


def in_barrier(journal: Journal, group: int) -> None:
    journal.begin(journal.collective(group, "barrier", shapes=None), 200 * MS, q=3)


def in_loader(journal: Journal, group: int) -> None:
    journal.stand(3 * S, "/src/train.py", 70, "load")


def test_who_left_its_count_out_and_waits_for_those_who_ask(tmp_path: Path) -> None:
    """All but this key of the series it has set: each side waits for the other."""
    job(tmp_path, in_barrier)
    found = finds(tmp_path, "deadlock", [], certainty="likely")
    assert (
        "rank 0 asks for store.add of 'app/arrived/3' (train.py:61) and waits for rank 2, which has"
        " set all such keys but this" in found.summary
    )


def test_a_first_key_names_nobody(tmp_path: Path) -> None:
    """No habit yet: who waits for those who ask is told where they are."""
    job(tmp_path, in_barrier, series=False)
    finds(tmp_path, "missing_participant", [], certainty="likely")


@pytest.mark.parametrize("well", [True, False])
def test_who_asked_in_vain_and_ended_well(tmp_path: Path, *, well: bool) -> None:
    """It looked for a message now and then, none came, and the job was through."""
    for journal, _ in steps(tmp_path, 2):
        if journal.rank == 0:
            call, error = journal.store_call("wait", 50), journal.string("wait timeout after 1s")
            for second in range(1, UNTIL_S):
                number = journal.begin(call, second * S, k="message")
                journal.record(e=number, d=900 * MS, x=error, f=1)
        if well:
            journal.leave((UNTIL_S if journal.rank == 0 else 8) * S)
        else:
            journal.beat(UNTIL_S)
    expected = [] if well else ["store_key_missing"]
    assert [found.kind for found in findings(tmp_path)] == expected


@pytest.mark.parametrize("line", [61, 99])
def test_who_gets_no_processor_still_asks(tmp_path: Path, line: int) -> None:
    """Its newest question is six seconds old, and it is seen at that line, or elsewhere."""
    for journal, _ in hang_without(tmp_path, 2, 0, until_s=UNTIL_S):
        call = journal.store_call("compare_set", 61)
        for n in range(1, 28):
            journal.run(call, n * S // 2, MS, k="lock")
        journal.stand(18 * S, "train.py", line, "main")
    found = finds(tmp_path, "missing_participant")
    assert bool(found.culprits) is (line == 99)
    assert ("asks again and again" in found.summary) is (line == 61)


def test_a_launcher_that_stops_those_who_ask_does_not_get_on(tmp_path: Path) -> None:
    """Nothing is in flight at all. It ends who hangs, and does nothing that anybody waits for."""
    agent = Journal(tmp_path, pid=3999, role="agent")
    job(tmp_path, in_loader)
    stop = agent.call("stop_workers", kind="composed", origin="python")
    agent.run(stop, UNTIL_S * S - 500 * MS, MS)
    found = finds(tmp_path, "store_key_missing", [], certainty="likely", waiting=[0, 1])
    assert "Ranks 0, 1 have asked for 'app/arrived/3' again and again for 19." in found.summary
    assert "rank 2 is at train.py:70 in load" in found.summary


def test_launchers_that_look_for_other_nodes_wait_for_nobody(tmp_path: Path) -> None:
    """The agents of two nodes look into their rendezvous while all workers compute."""
    for journal, _ in alive(steps(tmp_path, 2), UNTIL_S):
        journal.stand(3 * S, "/src/train.py", 70, "compile")
    for pid in (3998, 3999):
        agent = Journal(tmp_path, pid=pid, role="agent")
        agent.run(agent.store_call("compare_set", 60), 100 * MS, MS, k="rendezvous")
        look = agent.store_call("get", 61)
        for n in range(1, UNTIL_S):
            agent.run(look, n * S, MS, k="rendezvous")
        agent.beat(UNTIL_S)
    assert findings(tmp_path) == []


def test_all_ask_for_each_one_in_turn(tmp_path: Path) -> None:
    """Everybody sets a key of its own and looks for that of each; one spelt its own otherwise."""
    for journal, _ in alive(steps(tmp_path, 3), UNTIL_S):
        mine = "done/2" if journal.rank != 1 else "done_1"
        mine = mine if journal.rank else "done/0"
        journal.run(journal.store_call("set", 60), 200 * MS, MS, k=mine)
        check = journal.store_call("check", 61)
        journal.run(check, 210 * MS, MS, k=["done/0"])
        for n in range(1, 2 * UNTIL_S):
            journal.run(check, n * S // 2, MS, k=["done/1"])
    found = finds(tmp_path, "store_key_missing", [], certainty="likely", waiting=[0, 1, 2])
    assert "the nearest key that was set is 'app/done_1', by rank 1." in found.summary


@pytest.mark.parametrize("busy", [True, False])
def test_two_keys_in_turn(tmp_path: Path, *, busy: bool) -> None:
    """Workers look for the word to stop and for their next job; neither is set any more."""
    for journal, _ in alive(steps(tmp_path, 3), UNTIL_S):
        check = journal.store_call("check", 61)
        stop = journal.store_call("check", 60)
        for n in range(1, 2 * UNTIL_S) if journal.rank else ():
            journal.run(stop, n * S // 2, MS, k=["stop"])
            job = max(n, 5) if busy else 5
            journal.run(check, n * S // 2 + 2 * MS, MS, k=[f"job/{job}"])
    found = findings(tmp_path)
    if busy:
        assert found == []
        return
    one = only(found)
    assert (one.kind, one.certainty, one.culprits) == ("store_key_missing", "likely", ())
    assert "asked for 'app/job/5' and 'app/stop' again and again" in one.summary


def test_somebody_gets_on(tmp_path: Path) -> None:
    """The third computes and communicates with nobody, now and then."""

    def works(journal: Journal, group: int) -> None:
        for n in range(1, UNTIL_S):
            journal.run(journal.store_call("set", 80), n * S, MS, k="progress")

    job(tmp_path, works)
    assert findings(tmp_path) == []


def test_a_controller_that_asks_all_day(tmp_path: Path) -> None:
    """One rank looks for a message that it has no part in, while the other computes for long."""
    for journal, group in alive(steps(tmp_path, 2), UNTIL_S):
        if journal.rank:
            in_loader(journal, group)
        else:
            asks(journal, "message")
    assert findings(tmp_path) == []


def test_work_that_others_are_through_with_holds_up_nobody(tmp_path: Path) -> None:
    """Rank 0 took its future, and holds the GIL since: its poller could not see the end."""
    for journal, group in alive(steps(tmp_path, 2), UNTIL_S):
        call = journal.collective(group, asynchronous=True)
        work = journal.issue(call, 200 * MS, q=3, d=MS)
        journal.record(o=work, d=2 * MS, k="get_future")
        if journal.rank:
            journal.record(c=work, d=5 * MS, g=2 * MS)
    assert findings(tmp_path) == []


@pytest.mark.parametrize("how", ["is_completed", "get_future", None, "busy"])
def test_work_that_is_asked_for_and_not_waited_for(tmp_path: Path, how: str | None) -> None:
    """Two poll their last work, or await its future; who goes on meanwhile may well compute."""
    for journal, group in alive(steps(tmp_path, 3), UNTIL_S):
        if journal.rank == 2:
            in_loader(journal, group)
        else:
            call = journal.collective(group, asynchronous=True)
            works = [journal.begin(call, (200 + n) * MS, q=3 + n) for n in range(2)]
            for work in works:
                journal.record(i=work, d=MS)
            if how:
                journal.record(o=works[0], d=3 * MS, k="get_future" if how == "busy" else how)
            if how == "busy":
                journal.run(journal.store_call("set", 80), 300 * MS, MS, k="progress")
    found = findings(tmp_path)
    if how in (None, "busy"):
        assert found == []
        return
    assert (only(found).kind, found[0].certainty) == ("missing_participant", "likely")
    assert ranks(tmp_path, found[0].culprits) == [2]
    assert "Rank 2 never joined all_reduce #3 of the default group" in found[0].summary


@pytest.mark.parametrize("busy", [True, False])
def test_a_main_thread_beside_one_that_communicates(tmp_path: Path, *, busy: bool) -> None:
    """It counts where the other thread has done nothing since; else it may wait all day."""
    for journal, group in alive(steps(tmp_path, 2, count=0), UNTIL_S):
        thread = journal.numbered("thread", name="pool", main=False)
        call = journal.collective(group)
        journal.run(call, 150 * MS, MS, q=1, h=thread)
        journal.begin(journal.store_call("get", 50), 200 * MS, k="stop")
        for n in range(1, UNTIL_S if busy else 1):
            journal.run(call, n * S, MS, q=1 + n, h=thread)
    found = findings(tmp_path)
    assert [f.kind for f in found] == ([] if busy else ["store_key_missing"])


def first_is_stopped(process: Process) -> Observation:
    """The kernel says so of rank 0."""
    return Observation(alive=True, state="T") if process.rank == 0 else UNKNOWN


@pytest.mark.parametrize(
    ("look", "again"),
    [(first_is_stopped, False), (lambda _: UNKNOWN, False), (first_is_stopped, True)],
)
def test_a_server_that_is_still(tmp_path: Path, look: Look, *, again: bool) -> None:
    """Rank 0 serves the store and is stopped; a count of rank 1's, the only one or not, waits."""
    for journal, _ in steps(tmp_path, 2):
        if journal.rank:
            asks = journal.store_call("compare_set" if again else "add", 60)
            if again:
                journal.run(asks, 190 * MS, MS, k="arrived/3")
            journal.begin(asks, 200 * MS, k="arrived/3")
            if again:
                journal.stand(S, "train.py", 60, "main")
        journal.beat((5 if again else UNTIL_S) if journal.rank else 0)
    keys = {"certainty": "likely", "look": look, "stall_s": 3 if again else 10}
    found = finds(tmp_path, "no_progress", [0], **keys)
    assert "rank 0, which serves this store, does not answer" in found.summary


def test_a_server_that_runs_is_not_blamed(tmp_path: Path) -> None:
    """It waits for the other rank; its thread that serves answers all the same."""
    for journal, group in alive(steps(tmp_path, 2), UNTIL_S):
        if journal.rank:
            journal.begin(journal.store_call("add", 60), 200 * MS, k="arrived/3")
        else:
            in_barrier(journal, group)
    assert all(0 not in f.culprits or f.kind != "no_progress" for f in findings(tmp_path))


@pytest.mark.parametrize(
    ("inner", "shown"),
    [
        (("/usr/lib/python3.11/threading.py", 327, "wait"), "train.py:14 in reduce"),
        (("/src/loader.py", 9, "load"), "loader.py:9 in load"),
    ],
)
def test_a_thread_awaits_a_pool(tmp_path: Path, inner: tuple[str, int, str], shown: str) -> None:
    """Then the thread that communicates tells where the process is."""
    for journal, group in alive(steps(tmp_path, 2, count=0), UNTIL_S):
        thread = journal.numbered("thread", name="pool", main=False)
        call = journal.collective(group)
        journal.run(call, 150 * MS, MS, q=1, h=thread)
        main, pool = ("/src/train.py", 18, "<module>"), ("/src/train.py", 14, "reduce")
        if journal.rank:
            lock = ("/usr/lib/python3.11/threading.py", 327, "wait")
            journal.record(at=3 * S, h=thread, k=journal.stack(lock, pool))
            journal.record(at=3 * S, h=0, k=journal.stack(inner, main))
        else:
            journal.begin(call, 200 * MS, q=2, h=thread)
    finds(tmp_path, "missing_participant", [1], says=f"rank 1 is at {shown}")


@pytest.mark.parametrize("between", [True, False])
def test_a_main_thread_makes_groups_between_its_waits(tmp_path: Path, *, between: bool) -> None:
    """A pool communicates; the main thread waits for keys that were given between groups."""
    for journal, group in alive(steps(tmp_path, 2, count=0), UNTIL_S):
        thread = journal.numbered("thread", name="pool", main=False)
        journal.run(journal.collective(group), 120 * MS, MS, q=1, h=thread)
        if journal.rank:
            waits = journal.store_call("wait", 16)
            if between:
                journal.run(waits, 140 * MS, MS, k=["checkpoint/1"])
            journal.create(150 * MS, [0, 1], wait=False)
            text = journal.string("torch.distributed.DistStoreError: wait timeout after 1000ms")
            for n in range(20):
                journal.run(waits, 200 * MS + n * S, S - MS, k=["checkpoint/2"], x=text)
        else:
            for n, key in enumerate(("checkpoint/1", "chekpoint/2")):
                journal.run(journal.store_call("set", 25), 130 * MS + 40 * n * MS, MS, k=key)
            journal.create(150 * MS, [0, 1], wait=False)
            journal.create(190 * MS, [0, 1])
    found = only(findings(tmp_path))
    if between:
        assert (found.kind, ranks(tmp_path, found.waiting)) == ("store_key_missing", [1])
        assert "'app/chekpoint/2', by rank 0" in found.summary
    else:
        assert (found.kind, found.culprits) == ("missing_participant", ())


@pytest.mark.parametrize("stops", [False, True])
def test_who_communicates_with_others_may_come_yet(tmp_path: Path, stops: bool) -> None:
    """Spares wait in the last barrier while others train; these stop, and are waited for."""
    for journal, group in alive(steps(tmp_path, 4)):
        if journal.rank in (2, 3):
            journal.begin(journal.collective(group, "barrier", shapes=None), 200 * MS, q=3)
        else:
            own = journal.group(name="own", ranks=[0, 1], size=2, default=False)
            call = journal.collective(own)
            for number in range(1, 20 if stops else 40):
                journal.run(call, t=200 * MS + number * S // 2, d=MS, q=number)
    found = finds(tmp_path, "missing_participant")
    assert (found.certainty, ranks(tmp_path, found.culprits)) == (
        ("certain", [0, 1]) if stops else ("likely", [])
    )
    told = "ranks 0, 1 communicate with others (all_reduce #39 of group [0, 1]"
    assert (told in found.summary) is not stops


def test_who_has_a_lock_that_somebody_wants_is_named(tmp_path: Path) -> None:
    """Rank 0 took it by ``compare_set`` and never gives it back; rank 1 tries again and again."""
    for journal, _ in alive(steps(tmp_path, 2), UNTIL_S):
        if journal.rank == 0:
            journal.run(journal.store_call("compare_set", 60), 200 * MS, MS, k="lock")
            journal.stand(3 * S, "/src/train.py", 70, "save")
        else:
            take = journal.store_call("compare_set", 61)
            for n in range(2, 5 * UNTIL_S):
                journal.run(take, n * S // 5, MS, k="lock")
    found = finds(tmp_path, "store_key_missing", [], certainty="likely")
    assert "rank 0 has it since its store.compare_set at train.py:60" in found.summary
    assert (found.hint or "").startswith("Find why it never gives the lock back")


def test_whoever_asks_a_store_is_looked_at_there(tmp_path: Path) -> None:
    """Rank 1 kept a lock, and is in the last barrier, where others, who ask for it, never came."""
    for journal, group in alive(steps(tmp_path, 3), UNTIL_S):
        if journal.rank == 1:
            last = journal.collective(group, "barrier", stack=("train.py", 90, "end"))
            journal.begin(last, 250 * MS, q=3)
        else:
            take, give = (journal.store_call("compare_set", line) for line in (61, 62))
            journal.run(take, 200 * MS, MS, k="lock")
            journal.run(give, 210 * MS, MS, k="lock")
            for n in range(2, 5 * UNTIL_S):
                journal.run(take, n * S // 5, MS, k="lock")
    found = finds(tmp_path, "missing_participant", [], certainty="likely")
    assert "ranks 0, 2 ask again and again (store.compare_set" in found.summary
    assert (found.hint or "").startswith("Find the rank that should set what is polled there")
