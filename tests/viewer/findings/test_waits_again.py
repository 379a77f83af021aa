"""A wait with a time limit that is caught and repeated is one wait, as old as its first try."""

from __future__ import annotations

from pathlib import Path

import pytest

from disttrace_viewer.merge.reader import load
from support.journals import MS, Journal
from support.scenes import (
    S,
    alive,
    all_gone,
    beat,
    fail,
    findings,
    finds,
    only,
    ranks,
    stand,
    steps,
    store_call,
)

UNTIL_S = 20
LIMIT = "RuntimeError: Operation timed out!"
IN_VAIN = "torch.distributed.DistStoreError: wait timeout after 1900ms, keys: /app/weights"
ITS_LIMIT = {"args": {"timeout": 1.9}}
"""A store operation with a time limit of its own bears that in each record."""


def tries(journal: Journal, group: int, until_s: int = UNTIL_S, pause_ns: int = 100 * MS) -> int:
    """An all_reduce that is waited for two seconds, again and again, to the middle of a try."""
    number = journal.issue(journal.collective(group, asynchronous=True), 200 * MS, q=3, d=MS)
    for second in range(1, until_s, 2):
        journal.record(w=number, d=second * S)
        journal.record(e=number, d=(second + 2) * S - pause_ns, x=journal.string(LIMIT), r=1)
    return number


def in_loader(journal: Journal) -> None:
    stand(journal, 3 * S, "/src/train.py", 70, "load")
    beat(journal, UNTIL_S)


@pytest.mark.parametrize("between", [False, True])
def test_a_work_that_is_waited_for_again(tmp_path: Path, *, between: bool) -> None:
    """Also in the moment between two tries, when nothing is in flight."""
    for journal, group in steps(tmp_path, 2):
        if journal.rank == 0:
            in_loader(journal)
            continue
        number = tries(journal, group)
        if not between:
            journal.record(w=number, d=21 * S)
        beat(journal, UNTIL_S + 2)
    found = finds(tmp_path, "missing_participant", [0])
    assert "rank 1 has been waiting at train.py:10 for 2" in found.summary


def test_who_gave_up_for_good_waits_no_more(tmp_path: Path) -> None:
    """It caught the last error and computes since: nobody stands still by it."""
    for journal, group in steps(tmp_path, 2):
        if journal.rank == 1:
            tries(journal, group, until_s=6)
        in_loader(journal)
    assert findings(tmp_path) == []


def test_who_ends_by_the_last_try_is_no_culprit(tmp_path: Path) -> None:
    """The exception of a wait that reached its limit passes on that somebody did not come."""
    for journal, group in steps(tmp_path, 2):
        if journal.rank == 0:
            in_loader(journal)
            continue
        tries(journal, group)
        fail(journal, 21_800 * MS, "RuntimeError", "Operation timed out!")
    finds(tmp_path, "missing_participant", [0])


@pytest.mark.parametrize("handled", [True, False])
def test_a_limit_that_was_handled_breaks_nothing(tmp_path: Path, *, handled: bool) -> None:
    """What the program fails of after that is its own, unless it was raised from it."""
    for journal, group in steps(tmp_path, 3):
        if journal.rank == 0:
            call = journal.collective(group, asynchronous=True)
            number = journal.issue(call, 200 * MS, q=3, d=MS)
            journal.record(w=number, d=MS)
            journal.record(e=number, d=2 * S, x=journal.string(LIMIT), r=1)
            stack = journal.stack(("/src/train.py", 31, "step"))
            causes = {} if handled else {"causes": [LIMIT]}
            journal.define("failure", t=3 * S, type="ValueError", text="bad", stack=stack, h=0,
                           **causes)  # fmt: skip
            journal.define("exit", t=3 * S, how="exception", code=1)
            continue
        late = journal.rank == 1
        number = journal.begin(journal.collective(group), (5 * S if late else 200 * MS), q=3)
        gone = "RuntimeError: Connection closed by peer [127.0.0.1]:4711"
        journal.end(number, 5 * S - 100 * MS if not late else MS, x=journal.string(gone))
        fail(journal, 6 * S, "RuntimeError", gone.partition(": ")[2])
    found = only(findings(tmp_path))
    expected = ("process_failed", [0]) if handled else ("missing_participant", [1])
    assert (found.kind, ranks(tmp_path, found.culprits)) == expected
    if handled:
        assert "ValueError: bad" in found.summary


def test_one_that_comes_through_at_last_ended_well(tmp_path: Path) -> None:
    """Also in the table of all operations: one operation, with one end and no error."""
    for journal, group in steps(tmp_path, 2):
        if journal.rank == 0:
            journal.run(journal.collective(group), 10 * S, 900 * MS, q=3)
            continue
        number = tries(journal, group, until_s=8)
        journal.record(w=number, d=9 * S)
        journal.record(e=number, d=10_700 * MS)
    trace = load([str(tmp_path)])
    rows = trace.operations.filter(seq=3)
    assert rows["error"].to_list() == [None, None]
    assert rows["end_ns"].null_count() == 0
    assert trace.problems == ()
    assert [f for f in findings(tmp_path) if f.severity == "error"] == []


def awaits_key(journal: Journal, *, thread: int = 0) -> int:
    """``store.wait`` of two seconds, again and again; the number of its call."""
    call = store_call(journal, "wait", 50)
    for second in range(1, UNTIL_S, 2):
        number = journal.begin(call, second * S, k="weights", h=thread, a=ITS_LIMIT)
        journal.record(e=number, d=1_900 * MS, x=journal.string(IN_VAIN))
    return call


@pytest.mark.parametrize("pending", [False, True])
def test_a_key_that_is_awaited_again(tmp_path: Path, *, pending: bool) -> None:
    """By one process alone, which has had no other part in the key."""
    for journal, _ in steps(tmp_path, 2):
        if journal.rank == 1:
            call = awaits_key(journal)
            if pending:
                journal.begin(call, 21 * S, k="weights", a=ITS_LIMIT)
            beat(journal, UNTIL_S + 1)
        else:
            in_loader(journal)
    found = finds(tmp_path, "store_key_missing", [], certainty="likely")
    assert "'app/weights' again and again for" in found.summary
    assert "rank 0 is at train.py:70 in load" in found.summary


@pytest.mark.parametrize("computed", [False, True])
def test_a_kill_after_long_asking_is_not_the_cause(tmp_path: Path, *, computed: bool) -> None:
    """Of two killed one served the store; the other had held the GIL, and lived by its counts."""
    lost = "Failed to recv, got 0 bytes. Connection was likely closed."
    for journal, _ in steps(tmp_path, 3):
        if journal.rank == 2:
            stand(journal, 150 * MS, "/src/train.py", 70, "match")
            if computed:
                journal.define("activity", t=20 * S, over=5 * S, cpu=S, read=0, written=0, busy=1)
            journal.define("seen", t=25 * S, state="gone", others=0)
            continue
        number = journal.begin(awaits_key(journal), 21 * S, k="weights", a=ITS_LIMIT)
        beat(journal, UNTIL_S + 1)
        if journal.rank == 1:
            error = journal.string(f"torch.distributed.DistNetworkError: {lost}")
            journal.end(number, 700 * MS, x=error)
            fail(journal, 21_701 * MS, "DistNetworkError", lost)
        else:
            journal.define("seen", t=22 * S, state="gone", others=0)
    if not computed:
        finds(tmp_path, "process_failed", [2], look=all_gone)
        return
    found = finds(tmp_path, "store_key_missing", [], certainty="likely", look=all_gone)
    assert "rank 2 is at train.py:70 in match" in found.summary


@pytest.mark.parametrize("needed", [False, True])
def test_who_awaits_a_key_while_something_else_is_wrong(tmp_path: Path, *, needed: bool) -> None:
    """It may look for a message every now and then; if others wait for it, that is told."""
    for journal, _ in alive(steps(tmp_path, 4), UNTIL_S):
        rank = journal.rank or 0
        first = 2 * (rank // 2)
        store = journal.prefix_store(1, f"pair {first}")
        members = [first, first + 1]
        pair = journal.group(store, name=f"{first}", rank=rank - first, ranks=members)
        if journal.rank == 1 or (needed and journal.rank == 2):
            journal.begin(journal.collective(pair), 200 * MS, q=1)
        if journal.rank == 3:
            awaits_key(journal)
    kinds = sorted(one.kind for one in findings(tmp_path) if one.severity == "error")
    assert kinds == ["missing_participant", *["store_key_missing"] * needed]


def test_a_thread_beside_that_awaits_the_end_waits_for_nobody(tmp_path: Path) -> None:
    """It waits for the word to stop while the main thread computes."""
    for journal, _ in steps(tmp_path, 2):
        if journal.rank == 1:
            awaits_key(journal, thread=1)
        in_loader(journal)
    assert findings(tmp_path) == []


def test_who_is_needed_by_nobody_while_others_get_on(tmp_path: Path) -> None:
    """A controller may ask like that all day."""
    for journal, _ in alive(steps(tmp_path, 3), UNTIL_S):
        if journal.rank == 2:
            awaits_key(journal)
        else:
            store = journal.prefix_store(1, "active")
            active = journal.group(store=store, name="active", ranks=[0, 1])
            call = journal.collective(active)
            for n in range(3, 10 * UNTIL_S + 5):
                journal.run(call, t=n * S // 10, d=MS, q=n - 2)
    assert findings(tmp_path) == []
