"""What a thread beside the main one does in a store is no sign that the main one will come."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.journals import MS, Journal
from support.scenes import (
    PEER_GONE,
    S,
    all_gone,
    beat,
    fail,
    findings,
    leave,
    only,
    ranks,
    stand,
    steps,
    store_call,
)

UNTIL_S = 20


def talks(journal: Journal, thread: int) -> None:
    """It tells a store that it lives, five times a second until the end."""
    call = store_call(journal, "set", 90, "live")
    for n in range(5, 5 * UNTIL_S):
        journal.run(call, n * S // 5, MS, k="alive", h=thread)


@pytest.mark.parametrize("thread", [1, 0])
def test_who_stands_beside_a_thread_that_talks(tmp_path: Path, thread: int) -> None:
    """Rank 1 is to blame; not where its main thread asks: then somebody else may have to act."""
    for journal, group in steps(tmp_path, 2):
        if journal.rank == 0:
            journal.begin(journal.collective(group), 200 * MS, q=3)
        else:
            if thread:
                stand(journal, 12 * S, "/src/train.py", 70, "load")
            talks(journal, thread)
        beat(journal, UNTIL_S)
    found = only(findings(tmp_path))
    assert found.kind == "missing_participant"
    assert ranks(tmp_path, found.culprits) == ([1] if thread else [])
    assert ("rank 1 is at train.py:70 in load" in found.summary) is bool(thread)


def test_who_waits_for_that_thread_is_not_blamed(tmp_path: Path) -> None:
    """The main thread joins it: what it asks for may be for rank 0 to bring about."""
    for journal, group in steps(tmp_path, 2):
        if journal.rank == 0:
            journal.begin(journal.collective(group), 200 * MS, q=3)
        else:
            stand(journal, 12 * S, "/usr/lib/python3.11/threading.py", 1119, "join")
            talks(journal, 1)
        beat(journal, UNTIL_S)
    assert only(findings(tmp_path)).culprits == ()


def test_what_the_main_thread_did_last_is_told(tmp_path: Path) -> None:
    """Where it stands is not known: then since when it is in no collective, of its own calls."""
    for journal, group in steps(tmp_path, 2):
        if journal.rank == 0:
            journal.begin(journal.collective(group), 200 * MS, q=3)
        else:
            talks(journal, 1)
        beat(journal, UNTIL_S)
    found = only(findings(tmp_path))
    assert ranks(tmp_path, found.culprits) == [1]
    assert "rank 1 is not in any collective since all_reduce #2" in found.summary


def test_a_thread_that_exchanges_is_no_thread_beside(tmp_path: Path) -> None:
    """The thread that does the collectives asks a store: it may be on its way."""
    for journal, group in steps(tmp_path, 2):
        if journal.rank == 0:
            journal.begin(journal.collective(group), 400 * MS, q=4)
        else:
            journal.run(journal.collective(group), 200 * MS, MS, q=3, h=1)
            talks(journal, 1)
        beat(journal, UNTIL_S)
    assert [f.culprits for f in findings(tmp_path)] == [()]


def test_it_does_not_get_on_by_that(tmp_path: Path) -> None:
    """Rank 0 awaits a key again and again, which rank 1 does not set."""
    for journal, _ in steps(tmp_path, 2):
        if journal.rank == 0:
            call, error = store_call(journal, "wait", 50), journal.string("wait timeout after 1s")
            for second in range(1, UNTIL_S):
                number = journal.begin(call, second * S, k="weights")
                journal.record(e=number, d=900 * MS, x=error)
        else:
            stand(journal, 12 * S, "/src/train.py", 70, "load")
            talks(journal, 1)
        beat(journal, UNTIL_S)
    found = only(findings(tmp_path))
    assert (found.kind, found.culprits) == ("store_key_missing", ())


def test_a_reducer_waits_also_beside_a_thread_that_exchanges(tmp_path: Path) -> None:
    """In a group of its own, three times a second; rank 1 may wait there for something."""
    for journal, group in steps(tmp_path, 2):
        if journal.rank == 0:
            reduce = journal.collective(group, origin="c++", asynchronous=True)
            journal.record(i=journal.begin(reduce, 200 * MS, q=3), d=MS // 10)
        watch = journal.group(name="watch", default=False)
        call = journal.collective(watch)
        for n in range(1, 3 * UNTIL_S):
            journal.run(call, n * S // 3, MS, q=n, h=1)
        beat(journal, UNTIL_S)
    found = only(findings(tmp_path))
    assert (found.kind, found.seq, found.certainty) == ("missing_participant", 3, "likely")


def test_a_reducer_waits_also_beside_a_thread_that_talks(tmp_path: Path) -> None:
    """Nobody tells that C++ code waits: what its rank's other thread asks a store says nothing."""
    for journal, group in steps(tmp_path, 2):
        if journal.rank == 0:
            reduce = journal.collective(group, origin="c++", asynchronous=True)
            journal.record(i=journal.begin(reduce, 200 * MS, q=3), d=MS // 10)
        talks(journal, 1)
        if journal.rank:
            where = journal.stack(("train.py", 70, "load"), ("train.py", 20, "main"))
            journal.record(at=12 * S, h=0, k=where)
        beat(journal, UNTIL_S)
    found = only(findings(tmp_path))
    assert (found.kind, found.seq) == ("missing_participant", 3)
    assert ranks(tmp_path, found.culprits) == [1]
    assert "uneven" not in str(found.hint), "that thread's function is not the one it has left"


def test_a_straggler_is_found_beside_threads_that_talk(tmp_path: Path) -> None:
    """Rank 1 is away for 300 ms now and then, while a thread of it says that it lives."""
    let_go, number = 200 * MS, 2
    jobs = steps(tmp_path, 2)
    calls = [(journal.collective(group), store_call(journal, "set", 90)) for journal, group in jobs]
    for step in range(40):
        pause, number = 300 * MS * (step % 5 == 3), number + 1
        for (journal, _), (call, alive) in zip(jobs, calls, strict=True):
            for beat_ns in range(let_go + 50 * MS, let_go + pause, 50 * MS):
                journal.run(alive, beat_ns, MS, k="alive", h=1)
            begin = let_go + MS + (pause if journal.rank else 0)
            journal.run(call, begin, let_go + MS + pause + MS // 5 - begin, q=number)
        let_go += MS + pause + MS // 5
    for journal, _ in jobs:
        leave(journal, let_go + MS)
    found = only(findings(tmp_path, look=all_gone))
    assert (found.kind, ranks(tmp_path, found.culprits)) == ("straggler", [1])
    assert "by 300 ms in 8 of" in found.summary


@pytest.mark.parametrize("last", [-50 * MS, 50 * MS], ids=["the thread's", "the main one's"])
def test_who_asks_beside_a_thread_that_talks(tmp_path: Path, last: int) -> None:
    """Whichever of the two did something last, rank 1 asks for what somebody else should bring."""
    for journal, group in steps(tmp_path, 2):
        if journal.rank == 0:
            journal.begin(journal.collective(group), 200 * MS, q=3)
        else:
            asks, alive = store_call(journal, "check", 30), store_call(journal, "set", 90, "live")
            for n in range(5, 5 * UNTIL_S):
                told = [(n * S // 5 + last, asks, "ready", 0), (n * S // 5, alive, "alive", 1)]
                for t, call, key, thread in sorted(told):
                    journal.run(call, t, MS, k=key, h=thread)
        beat(journal, UNTIL_S)
    found = only(findings(tmp_path))
    assert (found.kind, found.culprits) == ("missing_participant", ())
    assert "rank 1 asks again and again (store.check of '" in found.summary


def test_who_ended_after_a_call_of_a_pool_has_the_line_before(tmp_path: Path) -> None:
    """No line of the program's made that call."""
    pool = ("/usr/lib/python3.11/concurrent/futures/thread.py", 58, "run")
    for journal, group in steps(tmp_path, 2):
        journal.run(store_call(journal, "set", 90), 150 * MS, MS, k="ready")
        theirs = journal.collective(group, stack=journal.stack(pool))
        journal.run(theirs, 200 * MS, MS, q=3, h=1)
        if journal.rank == 1:
            error = journal.string(PEER_GONE)
            number = journal.begin(journal.collective(group), 210 * MS, q=4)
            journal.end(number, MS, x=error)
            fail(journal, 215 * MS, "RuntimeError", PEER_GONE)
    found = only(findings(tmp_path, look=all_gone))
    assert (found.kind, ranks(tmp_path, found.culprits)) == ("process_failed", [0])
    assert [(where.file, where.line) for where in found.locations] == [("train.py", 90)]
